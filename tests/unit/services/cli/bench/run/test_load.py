"""Loads over a scripted server, on a clock that passes only while everybody waits: every time is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn, Helper
from services.cli.bench.report.latency_figures import job_figures
from services.cli.bench.run import load as load_module
from services.cli.bench.run.client import HURRIED_SLACK_S, ClientHabits
from services.cli.bench.run.load import LoadLimits, LoadResult, LoadRun
from services.cli.bench.targets.openai_target import OpenAiTarget
from services.cli.bench.targets.target import CallOutcome, TargetSampling
from shared.errors import InvalidRequest
from shared.telemetry.useful_answer import UsefulMarker
from tests.support.scripted_server import (
    Asked,
    Scripted,
    ScriptedServer,
    chat_piece,
    scripted_server,
    told_story,
)
from tests.support.virtual_time import VirtualLoop, run_virtual, virtual_now_s

EXACT = 1e-6
Play = Callable[[LoadRun], Any]


def dialogue(number: int = 0, at_s: float | None = None, turns: int = 1, **options: Any) -> Dialogue:
    said = tuple(DialogueTurn(f"question {number}.{turn}", 16) for turn in range(turns))
    return Dialogue(said, "test", number=number, at_s=at_s, **options)


def run(
    answer: Callable[[Asked], Scripted],
    play: Play,
    *,
    limits: LoadLimits | None = None,
    deadline_s: float = 100.0,
    think_s: float = 0.0,
    useful: str = "sentence",
) -> tuple[LoadResult, ScriptedServer]:
    """Play a load against a server that answers so, until the server has seen the end of all."""

    async def main() -> tuple[LoadResult, ScriptedServer]:
        async with scripted_server(answer) as server:
            target = OpenAiTarget(server.url, "chat", TargetSampling("scripted"), "a-key")
            habits = ClientHabits(deadline_s, 5.0, think_s, UsefulMarker.read(useful))
            load = LoadRun(target, habits, limits or LoadLimits(1e6), virtual_now_s(), clock=virtual_now_s)
            try:
                result = await play(load)
            finally:
                await target.close()
            await asyncio.sleep(60.0)
            return result, server

    return run_virtual(main())


def opened(dialogues: Iterable[Dialogue]) -> Play:
    return lambda load: load.open(iter(dialogues))


def closed(dialogues: Iterator[Dialogue], clients: int) -> Play:
    return lambda load: load.closed(dialogues, clients)


def endless(**options: Any) -> Iterator[Dialogue]:
    return (dialogue(number, **options) for number in range(10**6))


def test_the_times_of_an_answer_are_those_of_the_server() -> None:
    result, server = run(lambda _: told_story(4, first_s=0.2, gap_s=0.05), opened([dialogue(at_s=1.0)]))
    (record,) = result.records
    assert record.finished
    assert (record.intended_s, record.sent_s) == pytest.approx((1.0, 1.0), abs=EXACT)
    assert record.ttft_s == pytest.approx(0.2, abs=EXACT)
    assert record.gaps_s == pytest.approx([0.05, 0.05, 0.05], abs=EXACT)
    assert record.total_s == pytest.approx(0.35, abs=EXACT)
    assert record.tpot_s == pytest.approx(0.05, abs=EXACT)
    assert (record.facts.prompt_tokens, record.facts.completion_tokens) == (11, 4)
    assert server.asked[0].headers["authorization"] == "Bearer a-key"
    assert server.asked[0].body["messages"] == [{"role": "user", "content": "question 0.0"}]


def test_an_open_loop_waits_for_no_answer() -> None:
    result, server = run(lambda _: told_story(1, first_s=5.0), opened(dialogue(n, n * 0.5) for n in range(8)))
    assert [asked.at_s for asked in server.asked] == pytest.approx([n * 0.5 for n in range(8)], abs=EXACT)
    assert [record.ttft_s for record in result.records] == pytest.approx([5.0] * 8, abs=EXACT)


def test_what_is_sent_late_is_counted_from_when_it_should_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients would have waited for a generator with one call at a time is in their latencies."""
    monkeypatch.setattr(load_module, "MAX_IN_FLIGHT", 1)
    result, _ = run(lambda _: told_story(1, first_s=1.0), opened(dialogue(n, 0.0) for n in range(3)))
    assert [record.ttft_s for record in result.records] == pytest.approx([1.0, 2.0, 3.0], abs=EXACT)
    assert result.generator.send_late_p99_ms == pytest.approx(2000, abs=1)
    assert any("left 2000.0 ms late" in sentence for sentence in result.generator.warnings())


def test_a_busy_generator_says_so() -> None:
    def answer(asked: Asked) -> Scripted:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_later(0.5, loop.be_busy, 0.3)
        return told_story(2, first_s=2.0)

    result, _ = run(answer, opened([dialogue(at_s=0.0)]))
    assert result.generator.loop_late_p99_ms == pytest.approx(300, abs=25)
    assert any("saw events" in sentence for sentence in result.generator.warnings())


def test_a_closed_loop_keeps_its_clients_busy_until_its_time_is_over() -> None:
    result, server = run(
        lambda _: told_story(2, first_s=0.5, gap_s=0.5), closed(endless(), 3), limits=LoadLimits(3.5)
    )
    at = sorted(asked.at_s for asked in server.asked)
    assert at == pytest.approx([0.0] * 3 + [1.0] * 3 + [2.0] * 3 + [3.0] * 3, abs=EXACT)
    assert sorted(record.number for record in result.records) == list(range(12))
    assert all(record.intended_s == record.sent_s for record in result.records)


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_line_that_cannot_be_used_is_said_when_what_runs_has_ended(is_open: bool) -> None:
    asked: list[Asked] = []

    def broken() -> Iterator[Dialogue]:
        yield dialogue(0, at_s=0.0)
        yield dialogue(1, at_s=0.5)
        raise InvalidRequest("trace.jsonl, line 3: it is no JSON")

    def answer(one: Asked) -> Scripted:
        asked.append(one)
        return told_story(2)

    with pytest.raises(InvalidRequest, match="line 3: it is no JSON"):
        run(answer, opened(broken()) if is_open else closed(broken(), 2))
    assert [one.gone_at_s for one in asked] == [None, None]


def test_so_many_dialogues_and_no_more() -> None:
    result, _ = run(lambda _: told_story(1), closed(endless(), 3), limits=LoadLimits(1e6, 5))
    assert len(result.records) == 5


def test_a_turn_waits_for_the_answer_before_and_says_it_again() -> None:
    result, server = run(
        lambda _: told_story(2, first_s=1.0, gap_s=1.0),
        opened([dialogue(at_s=0.0, turns=2, system="Be brief.")]),
        think_s=3.0,
    )
    assert [asked.at_s for asked in server.asked] == pytest.approx([0.0, 5.0], abs=EXACT)
    assert [each["content"] for each in server.asked[1].body["messages"]] == [
        "Be brief.",
        "question 0.0",
        "word0 word1 ",
        "question 0.1",
    ]
    first, second = result.records
    assert second.intended_s == pytest.approx(5.0, abs=EXACT)
    assert (first.turn, second.turn, second.ttft_s) == pytest.approx((0, 1, 1.0), abs=EXACT)


def test_a_turn_waits_for_the_helper_that_it_needs_and_for_no_other() -> None:
    """The agent's first answer is there after 1 s; helpers take 2 s each, the second begins 5 s later."""

    def says(text: str, pause_s: float = 0.0) -> DialogueTurn:
        return DialogueTurn(lambda: text, 16, whole=True, pause_s=pause_s)

    needed = Helper((says("helper"), says("helper again", 1.0)), after=0, begins_s=0.5, before=1)
    background = Helper((says("background"),), after=0, begins_s=5.0, before=None)
    agent = Dialogue(
        (says("begin"), says("end", 0.25)), "test", at_s=0.0, helpers=(needed, background), mark="[1] "
    )

    def answer(asked: Asked) -> Scripted:
        main = asked.body["messages"][-1]["content"] in ("[1] begin", "[1] end")
        return told_story(2, first_s=0.5 if main else 1.0, gap_s=0.5 if main else 1.0)

    result, server = run(answer, opened([agent]))
    assert [asked.body["messages"] for asked in server.asked] == [
        [{"role": "user", "content": f"[1] {text}"}]
        for text in ("begin", "helper", "helper again", "background", "end")
    ]
    assert [asked.at_s for asked in server.asked] == pytest.approx([0.0, 1.5, 4.5, 6.0, 6.75], abs=EXACT)
    assert job_figures(result.records, 0.0).quantiles["p50"].value == pytest.approx(8000, abs=1)


def test_helpers_of_a_turn_that_does_not_finish_do_not_begin() -> None:
    helper = Helper((DialogueTurn("help", 16),), after=0, begins_s=0.0, before=1)
    agent = Dialogue((DialogueTurn("a", 16), DialogueTurn("b", 16)), "test", at_s=0.0, helpers=(helper,))
    _, server = run(lambda _: Scripted(status=500, body={}), opened([agent]))
    assert len(server.asked) == 1


def test_a_dialogue_ends_with_a_turn_that_does_not_finish() -> None:
    shed = Scripted(status=429, body={"error": {"message": "no room", "code": "overloaded"}})
    result, server = run(lambda _: shed, opened([dialogue(at_s=0.0, turns=3)]))
    assert len(server.asked) == 1
    (record,) = result.records
    assert (record.outcome, record.kind, record.told) == (CallOutcome.SHED, "http 429 overloaded", "no room")
    assert not record.is_error


@pytest.mark.parametrize("conduct", [Conduct.CANCEL, Conduct.DISCONNECT])
@pytest.mark.parametrize(("tokens", "leaves_s"), [(0, 0.02), (1, 1.0), (3, 3.0)])
def test_a_client_leaves_after_its_tokens(conduct: Conduct, tokens: int, leaves_s: float) -> None:
    result, server = run(
        lambda _: told_story(9, first_s=1.0, gap_s=1.0),
        opened([dialogue(at_s=0.0, conduct=conduct, amount=tokens)]),
    )
    (record,) = result.records
    assert (record.outcome, record.kind, record.is_error) == (CallOutcome.GAVE_UP, conduct.value, False)
    assert len(record.pieces_s) == tokens
    assert record.ended_s == pytest.approx(leaves_s, abs=EXACT)
    assert server.asked[0].gone_at_s == pytest.approx(leaves_s, abs=0.011)
    if tokens:  # before the answer begins a connection is closed, whatever the conduct
        assert server.asked[0].was_reset == (conduct is Conduct.DISCONNECT)


def test_a_client_that_is_refused_at_once_has_not_left() -> None:
    result, _ = run(
        lambda _: Scripted(status=400, body={"error": {"message": "no"}}),
        opened([dialogue(at_s=0.0, conduct=Conduct.CANCEL)]),
    )
    assert (result.records[0].outcome, result.records[0].is_error) == (CallOutcome.REFUSED, True)


def test_a_client_that_stops_to_read_keeps_its_connection() -> None:
    result, server = run(
        lambda _: told_story(20, first_s=1.0, gap_s=1.0),
        opened([dialogue(at_s=0.0, conduct=Conduct.STALL, amount=2)]),
    )
    (record,) = result.records
    assert (record.outcome, len(record.pieces_s)) == (CallOutcome.GAVE_UP, 2)
    assert server.asked[0].gone_at_s == pytest.approx(2.0 + 5.0, abs=0.011)


def test_a_hurried_client_tells_its_deadline_and_is_failed_by_a_server_that_forgets_it() -> None:
    expired = Scripted(status=504, body={"error": {"message": "late", "code": "deadline_expired"}})
    hurried = dialogue(at_s=0.0, conduct=Conduct.HURRIED, amount=50)
    result, server = run(lambda _: expired, opened([hurried]))
    assert server.asked[0].headers["x-penstock-deadline-ms"] == "50"
    assert (result.records[0].outcome, result.records[0].is_error) == (CallOutcome.EXPIRED, False)
    result, _ = run(lambda _: told_story(1, first_s=99.0), opened([hurried]))
    (record,) = result.records
    assert (record.outcome, record.kind, record.is_error) == (CallOutcome.FAILED, "no end in time", True)
    assert record.ended_s == pytest.approx(0.05 + HURRIED_SLACK_S, abs=EXACT)


def test_no_call_is_waited_for_longer_than_its_deadline() -> None:
    result, server = run(lambda _: told_story(9, 1.0, 1.0), opened([dialogue(at_s=0.0)]), deadline_s=2.5)
    (record,) = result.records
    assert (record.outcome, record.is_error) == (CallOutcome.EXPIRED, True)
    assert (len(record.pieces_s), record.ended_s) == pytest.approx((2, 2.5), abs=EXACT)
    assert server.asked[0].gone_at_s == pytest.approx(2.5, abs=0.011)


@pytest.mark.parametrize(
    ("useful", "texts", "useful_s"),
    [
        ("sentence", ["Yes", " it is. ", "But"], 2.0),
        ("sentence", ["It is", " 3.5", " or so."], 3.0),
        ("json", ['Here: {"a"', ': "}"', "}", " done"], 3.0),
        ("regex:4[0-9]", ["The answer", " is 4", "2"], 3.0),
        ("regex:never", ["The answer"], None),
    ],
)
def test_when_an_answer_is_of_use(useful: str, texts: list[str], useful_s: float | None) -> None:
    script = Scripted(tuple((1.0, chat_piece(text)) for text in texts))
    result, _ = run(lambda _: script, opened([dialogue(at_s=0.0)]), useful=useful)
    found = result.records[0].ttua_s
    assert found == pytest.approx(useful_s, abs=EXACT) if useful_s else found != found
