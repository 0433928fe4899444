"""One computation and who follows it."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import RoutingDecision
from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.prompt.request_hashes import RequestHashes
from services.gateway.request.request import validate_request
from services.gateway.scope.prompt_logprobs_buffer import PromptLogprobsBuffer
from services.gateway.scope.session_state import SessionState
from services.gateway.scope.text_row import TextRow
from services.gateway.scope.token_log import TokenLog
from services.gateway.session.computation import MAX_CALLERS, Computation, ComputationEnd
from services.gateway.session.interruption import Interruption
from services.gateway.session.running_computations import RunningComputations
from shared.blocks.block_hash import BlockHasher
from shared.deadline import Deadline

PROMPT_IDS = (1, 2)
SOON, LATER = Deadline(100.0), Deadline(200.0)


def prompt() -> PreparedPrompt:
    request = validate_request(pb.GenerateRequest(text="x"), drawn_seed=0)
    hashes = RequestHashes(BlockHasher.of(""), "", "", (), adapter="")
    return PreparedPrompt(request, ModelIdentity("m"), PROMPT_IDS, hashes, pb.PromptInfo())


class Caller:
    """Keeps what it hears."""

    def __init__(self, breaks: bool = False) -> None:
        self.rows: list[TextRow] = []
        self.faults: list[Exception] = []
        self.ends: list[ComputationEnd] = []
        self.breaks = breaks
        self.next_position: int | None = None

    def on_prompt(self, prompt: PreparedPrompt) -> None:
        self.next_position = len(prompt.token_ids)

    def on_row(self, row: TextRow, now_s: float) -> None:
        assert now_s >= 0.0
        if self.breaks:
            raise ValueError("broken")
        self.rows.append(row)

    def on_fault(self, error: Exception) -> None:
        self.faults.append(error)

    def on_end(self, end: ComputationEnd) -> None:
        self.ends.append(end)


class Owner:
    """A session, as far as its computation knows of it."""

    def __init__(self, most_tokens: int = 100) -> None:
        self.state = SessionState(10)
        self.state.begin_log(TokenLog(len(PROMPT_IDS)), PromptLogprobsBuffer())
        self.state.begin_epoch(RoutingDecision("decode-0", "prefill-0", "detokenizer-0", ""))
        self.interruption = Interruption()
        self.computation = Computation("r", self.state, SOON, self.interruption, most_tokens)
        self.computation.put_prompt(prompt())

    def draw(self, text: str) -> None:
        ids = tuple(map(ord, text))
        row = TextRow(1, self.state.log.next_position, ids, text, "", (), ())
        self.state.log.append(ids, text)
        self.computation.put_row(row, 0.0)


async def test_a_late_caller_gets_what_is_there_as_one_row_and_then_each() -> None:
    owner, late = Owner(), Caller()
    owner.draw("a")
    owner.draw("b")
    owner.computation.add(late)
    owner.draw("c")
    assert [(row.position, row.text, row.token_ids) for row in late.rows] == [
        (2, "ab", (97, 98)),
        (4, "c", (99,)),
    ]


async def test_more_tokens_than_are_kept_take_nobody_who_has_less() -> None:
    owner = Owner(most_tokens=2)
    owner.draw("ab")
    assert owner.computation.takes(LATER, None, logprobs=False)
    owner.draw("c")
    assert not owner.computation.takes(LATER, None, logprobs=False)
    assert owner.computation.takes(LATER, 5, logprobs=False)


async def test_callers_are_bounded() -> None:
    owner = Owner()
    for _ in range(MAX_CALLERS - 2):
        owner.computation.add(Caller())
    assert owner.computation.takes(LATER, None, logprobs=False)
    owner.computation.add(Caller())
    assert not owner.computation.takes(LATER, None, logprobs=False)


async def test_an_earlier_first_token_or_log_probabilities_that_are_gone_are_no_match() -> None:
    owner = Owner()
    assert not owner.computation.takes(Deadline(99.0), None, logprobs=True)
    assert owner.computation.takes(SOON, None, logprobs=True)
    owner.draw("a")
    assert owner.computation.takes(Deadline(99.0), None, logprobs=False)
    assert not owner.computation.takes(SOON, None, logprobs=True)


async def test_trouble_of_one_caller_is_not_that_of_another() -> None:
    owner, broken, whole = Owner(), Caller(breaks=True), Caller()
    owner.computation.add(broken)
    owner.computation.add(whole)
    owner.draw("a")
    assert [type(fault) for fault in broken.faults] == [ValueError]
    assert [row.text for row in whole.rows] == ["a"]


async def test_each_token_is_charged_once_whoever_leaves() -> None:
    owner, first, second = Owner(), Caller(), Caller()
    owner.computation.add(first)
    owner.computation.add(second)
    owner.draw("ab")
    owner.computation.leave_owner()  # charged for its prompt and two tokens, as it knows itself
    owner.draw("cde")
    assert owner.computation.remove(first) == 3
    owner.draw("f")
    assert not owner.interruption.came.done()
    assert owner.computation.remove(second) == 1
    assert owner.interruption.came.done(), "nobody is left"
    assert owner.computation.remove(second) == 0


async def test_who_goes_on_hands_on_what_was_there_where_it_has_all_of_it() -> None:
    earlier, later, other = Owner(), Owner(), Owner()
    earlier.draw("ab")
    later.state.log.append((97, 98), "ab")
    later.computation.go_on_from(earlier.computation)
    caller = Caller()
    later.computation.add(caller)
    assert [row.text for row in caller.rows] == ["ab"]
    other.state.log.append((97, 98, 99), "abc")
    other.computation.go_on_from(earlier.computation)
    assert not other.computation.takes(LATER, None, logprobs=False)


@pytest.mark.parametrize("replaced", [False, True])
async def test_what_has_ended_is_not_found_and_what_took_its_place_is(replaced: bool) -> None:
    running, owner, other = RunningComputations(), Owner(), Owner()
    running.begin("key", owner.computation)
    if replaced:
        running.begin("key", other.computation)
    running.end("key", owner.computation)
    found = running.find("key", LATER, None, logprobs=False)
    assert found is (other.computation if replaced else None)
