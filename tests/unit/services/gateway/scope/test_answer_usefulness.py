"""When the client of a request has a useful answer."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.answer_format import AnswerFormat
from services.gateway.config import GatewayConfig
from services.gateway.context import read_useful_marker
from services.gateway.scope.answer_usefulness import AnswerUsefulness
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.response_buffer import ResponseBuffer
from shared.config.fields import ConfigError
from shared.telemetry.useful_answer import UsefulMarker
from shared.text.tool_formats import FORMATS
from tests.support.clock import FakeClock

STEP_S = 0.001
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def useful_after(marker: str, *deltas: pb.TextDelta, ends: bool = True) -> int | None:
    """Return how many steps of a millisecond it took; the end is one too. None: it never was."""
    clock = FakeClock()
    timeline, response = RequestTimeline(0, clock), ResponseBuffer(100)
    usefulness = AnswerUsefulness(UsefulMarker.read(marker), timeline, response)
    for delta in deltas:
        clock.advance(STEP_S)
        usefulness.note_delivered(delta.text, delta.reasoning)
    if ends:
        clock.advance(STEP_S)
        usefulness.note_end()
    took_us = timeline.measured_useful_us
    assert timeline.to_event().useful_us == (took_us or 0)
    return None if took_us is None else round(took_us / 1e3)


def said(*texts: str) -> list[pb.TextDelta]:
    return [pb.TextDelta(text=text) for text in texts]


@pytest.mark.parametrize(
    ("marker", "deltas", "steps"),
    [
        ("sentence", said("It ", "rains. ", "And more. "), 2),
        ("sentence", said("It ", "rains."), 3),
        ("sentence", [pb.TextDelta(reasoning="It may rain. "), *said("No. ", "x")], 2),
        ("thinking", [pb.TextDelta(reasoning="So."), *said("\n", "No", ".")], 3),
        ("thinking", [pb.TextDelta(reasoning="So.", text="No")], 1),
        ("json", said('{"a": ', "[1]", "}", "!"), 3),
        ("regex:[0-9]+ kg", said("about 7", "0 kg", "."), 2),
    ],
)
def test_it_is_useful_with_what_its_marker_wants(marker: str, deltas: list[pb.TextDelta], steps: int) -> None:
    assert useful_after(marker, *deltas) == steps


def test_one_that_was_cut_before_that_never_is() -> None:
    assert useful_after("sentence", *said("It rains"), ends=False) is None
    assert useful_after("json", *said("no"), ends=True) is None
    assert useful_after("thinking", pb.TextDelta(reasoning="So.")) is None


async def test_calls_alone_are_useful_when_they_are_whole() -> None:
    clock = FakeClock()
    timeline, response = RequestTimeline(0, clock), ResponseBuffer(100)
    response.read_answer(AnswerFormat(tool_format=FORMATS["hermes"]))
    response.put_text(0, (1,), CALL, ())
    part = await response.take_response()
    assert part.delta is not None
    usefulness = AnswerUsefulness(UsefulMarker.read("sentence"), timeline, response)
    usefulness.note_delivered(part.delta.text, part.delta.reasoning)
    assert timeline.measured_useful_us is None
    clock.advance(STEP_S)
    usefulness.note_end()
    assert timeline.measured_useful_us == 1000


def test_nobody_looks_unless_an_operator_wants_it_by_a_marker_that_can_be_read() -> None:
    assert read_useful_marker(GatewayConfig()) is None
    marker = read_useful_marker(GatewayConfig(useful_marker="regex:[0-9]"))
    assert marker is not None
    assert marker.found("at 7")
    with pytest.raises(ConfigError, match=r"useful_marker: the pattern '\(' cannot be read"):
        read_useful_marker(GatewayConfig(useful_marker="regex:("))
