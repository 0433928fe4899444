"""The answers of a fleet tell how long later ones get, and change none of them."""

from __future__ import annotations

from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.admission.answer_lengths import LEAST_SEEN
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.support.client import Answer
from tests.support.metric import total
from tests.support.models import make_tiny_checkpoint

WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0"]
TOKENS = 24
LIMIT_S = 600.0


def request(stop: str = "") -> pb.GenerateRequest:
    return pb.GenerateRequest(
        text="the dog ran",
        sampling=pb.Sampling(
            max_tokens=TOKENS, temperature=0.0, ignore_eos=True, stop=[stop] if stop else ()
        ),
    )


def expected(result: str) -> float:
    return total("penstock_expected_answers_total", result=result)


async def asked_again(fleet: Fleet) -> tuple[list[Answer], list[float]]:
    """Return answers that end at one place, and how many were predicted before each of them."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    whole = await fleet.client().finish(GATEWAY, request(), name="whole")
    stop = whole.text[len(whole.text) // 2 :][:6]
    answers, predicted = [], []
    for number in range(int(LEAST_SEEN) + 4):
        predicted.append(expected("within") + expected("longer"))
        answers.append(await fleet.client().finish(GATEWAY, request(stop), name=f"again-{number}"))
    predicted.append(expected("within") + expected("longer"))
    return answers, predicted


def test_answers_are_predicted_once_some_are_known_and_stay_what_they_were(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "tiny")
    longer = expected("longer")
    with fleet_of(7, model) as fleet:
        answers, predicted = fleet.world.run(asked_again(fleet), limit_s=LIMIT_S)
    assert 0 < len(answers[0].ids) < TOKENS
    assert all((each.ids, each.text) == (answers[0].ids, answers[0].text) for each in answers)
    assert predicted[-1] - predicted[0] >= 3
    assert predicted[1] == predicted[0]
    assert expected("longer") == longer
