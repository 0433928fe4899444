"""What is searched for in the place of a question, by whom, and what becomes of a rewriter that fails."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.config import GatewayConfig
from services.gateway.question.question_rewriter import MAX_RUNNING, REWRITE_FAILED, QuestionRewriter
from services.gateway.question.searched_question import TOO_LONG, SearchedQuestion, searched_question
from services.gateway.request.request import Request, validate_request
from shared.config.fields import ConfigError
from shared.deadline import Deadline
from shared.messages import MAX_QUERY_CHARS

MODULE = "rewriter_of_a_test"
TIMEOUT_S = 30.0

WriteModule = Callable[[str], None]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """Writes the module that the rewriters of these tests are in, and forgets an earlier one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        sys.modules.pop(MODULE, None)
        (tmp_path / f"{MODULE}.py").write_text(text)

    yield write
    sys.modules.pop(MODULE, None)


def rewriter(said: str = f"{MODULE}:rewrite", **config: object) -> QuestionRewriter:
    settings = {"rewrite_timeout_ms": 1000 * TIMEOUT_S, **config}
    return QuestionRewriter.of(GatewayConfig(question_rewriter=said, **settings))  # type: ignore[arg-type]


def asked(*turns: str, query: str = "") -> Request:
    """A chat of the user's messages."""
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=turn) for turn in turns])
    retrieval = pb.Retrieval(enabled=True, query=query)
    return validate_request(pb.GenerateRequest(chat=chat, retrieval=retrieval), drawn_seed=1)


async def searched(request: Request, by: QuestionRewriter) -> SearchedQuestion:
    return await searched_question(request, by, Deadline.after(TIMEOUT_S))


async def test_by_default_a_follow_up_is_searched_for_with_what_it_leans_on() -> None:
    by = QuestionRewriter.of(GatewayConfig())
    found = await searched(asked("Where is Oslo?", "How big is it?"), by)
    assert found == SearchedQuestion("Where is Oslo? How big is it?")


async def test_without_a_rewriter_it_is_searched_for_as_it_is() -> None:
    found = await searched(asked("Where is Oslo?", "How big is it?"), rewriter("none"))
    assert found == SearchedQuestion("How big is it?")


async def test_the_client_s_own_query_is_left_to_no_rewriter() -> None:
    by = rewriter("history")
    assert await searched(asked("Where is Oslo?", "and?", query="it"), by) == SearchedQuestion("it")


async def test_a_function_of_somebody_else_gets_the_question_and_the_turns_before_it(
    write_module: WriteModule,
) -> None:
    write_module("def rewrite(question, history):\n    return f'{question} {history}'\n")
    found = await searched(asked("one", "two"), rewriter())
    assert found == SearchedQuestion("two (('user', 'one'),)")


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('secret')",
        "raise SystemExit(3)",
        "raise StopIteration",
        "return None",
        "return b'bytes'",
        "return ' \\n'",
        "return '\\ud800'",
    ],
)
async def test_where_it_fails_the_question_is_searched_for_as_it_is_and_its_client_told(
    write_module: WriteModule, body: str
) -> None:
    write_module(f"def rewrite(question, history):\n    {body}\n")
    assert await searched(asked("one", "two"), rewriter()) == SearchedQuestion("two", REWRITE_FAILED)


HELD = """import threading
go, running = threading.Event(), threading.Semaphore(0)

def rewrite(question, history):
    running.release()
    assert go.wait(30)
    return "late"
"""


async def test_it_has_its_time_and_no_more_and_what_it_says_later_has_no_reader(
    write_module: WriteModule,
) -> None:
    write_module(HELD)
    by = rewriter(rewrite_timeout_ms=1.0)
    assert await searched(asked("one"), by) == SearchedQuestion("one", REWRITE_FAILED)
    let_go()


async def test_it_never_has_longer_than_the_request_has_for_retrieval(write_module: WriteModule) -> None:
    write_module(HELD)
    found = await searched_question(asked("one"), rewriter(), Deadline.after(0.001))
    assert found == SearchedQuestion("one", REWRITE_FAILED)
    let_go()


async def test_so_many_calls_run_at_a_time_and_no_more(write_module: WriteModule) -> None:
    write_module(HELD)
    by = rewriter(rewrite_timeout_ms=1.0)
    for _ in range(MAX_RUNNING + 1):
        assert (await searched(asked("one"), by)).warning == REWRITE_FAILED
    module = sys.modules[MODULE]
    for _ in range(MAX_RUNNING):
        assert module.running.acquire(timeout=TIMEOUT_S)
    assert not module.running.acquire(blocking=False)
    let_go()
    # With their ends there is room again.
    by._timeout_s = TIMEOUT_S
    assert (await searched(asked("one"), by)).query == "late"


def let_go() -> None:
    """And wait for the threads."""
    sys.modules[MODULE].go.set()
    for thread in threading.enumerate():
        if thread.name == "rewrite":
            thread.join(TIMEOUT_S)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("histories", "write history, none, or MODULE:FUNCTION"),
        ("", "write history, none, or MODULE:FUNCTION"),
        (":rewrite", "write history, none, or MODULE:FUNCTION"),
        ("module:", "write history, none, or MODULE:FUNCTION"),
        ("no_such_module_at_all:rewrite", "cannot be imported (ModuleNotFoundError"),
        (f"{MODULE}:absent", "has no function absent"),
        (f"{MODULE}:NUMBER", "has no function NUMBER"),
        (f"{MODULE}:short", "cannot be called with a question and its history"),
        (f"{MODULE}:later", "is a coroutine: name a plain function"),
    ],
)
def test_a_rewriter_that_cannot_be_used_is_said_at_the_start(
    write_module: WriteModule, said: str, words: str
) -> None:
    write_module("NUMBER = 1\ndef short(question): ...\nasync def later(question, history): ...\n")
    with pytest.raises(ConfigError, match=re.escape(words)):
        rewriter(said)


def test_a_module_that_breaks_while_it_is_imported_is_said_at_the_start(write_module: WriteModule) -> None:
    write_module("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        rewriter()


def test_a_rewriter_whose_module_has_changed_is_another_one(write_module: WriteModule) -> None:
    identities = []
    for text in ("return question", "return question", "return question.lower()"):
        write_module(f"def rewrite(question, history):\n    {text}\n")
        identities.append(rewriter().identity)
    assert identities[0] == identities[1] != identities[2]
    assert len({*identities, rewriter("history").identity, rewriter("none").identity}) == 4


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("q" * MAX_QUERY_CHARS, SearchedQuestion("q" * MAX_QUERY_CHARS)),
        ("q" * (MAX_QUERY_CHARS + 1), SearchedQuestion("q" * MAX_QUERY_CHARS, TOO_LONG)),
        (" " * MAX_QUERY_CHARS + "word", SearchedQuestion("word", TOO_LONG)),
    ],
    ids=["fits", "one more", "blank at first"],
)
async def test_a_question_is_searched_for_by_so_many_of_its_characters(
    question: str, found: SearchedQuestion
) -> None:
    assert await searched(asked(question), rewriter("history")) == found
    assert await searched(asked("?", query=question), rewriter("history")) == found
