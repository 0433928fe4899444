"""`penstock search` as a process, before a real gateway with scripted retrievers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from services.cli.ask.search import MAX_FOUND, main
from services.gateway.asks.passage_asks import MAX_FOUND as MAX_GIVEN
from shared.errors import NotFound
from shared.files.api_key_file import KeyLimits, new_api_key
from shared.messages import Message, Retrieve, Retrieved, ScoredPassage
from tests.integration.gateway_peers import Answer, Running, gateway
from tests.integration.test_gateway_passages import asked, retrieving
from tests.integration.test_gateway_text_asks import key_file
from tests.support.data import REPOSITORY
from tests.support.ended_program import EndedProgram, ended_program
from tests.support.terminal import Terminal

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LONG = "Water flows through the gate, and " * 4 + "stops.\n\n    - a list\nof \x1b[31mred things"


async def search(running: Running, *argv: str, stdin: bytes = b"", **environ: str) -> EndedProgram:
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "search", "--grpc", running.server.address, *argv),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, **environ},
    )
    return await ended_program(process, stdin)


def finding(*passages: ScoredPassage, degraded: str = "", warning: str = "") -> Retrieved:
    return Retrieved(passages, degraded, 1, 1, warning=warning)


async def test_passages_are_shown_with_where_they_stand(nats_url: str) -> None:
    found = finding(
        ScoredPassage("docs/gates.md § Gates > Iron", LONG, 0.876, 3, 99, 2),
        ScoredPassage("other.md", "Short.", 0.5),
    )
    async with retrieving(nats_url, lambda _: found) as (_, running):
        done = await search(running, "Which gate?", COLUMNS="60")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "1. docs/gates.md § Gates > Iron, page 2 (0.88)\n"
        "   Water flows through the gate, and Water flows through the\n"
        "   gate, and Water flows through the gate, and Water flows\n"
        "   through the gate, and stops.\n"
        "\n"
        "       - a list\n"
        "   of \x1b[31mred things\n"
        "\n"
        "2. other.md (0.50)\n"
        "   Short.\n"
    )


@pytest.mark.thorough(but="text")
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
async def test_no_passage_moves_the_cursor_of_a_terminal(nats_url: str, options: tuple[str, ...]) -> None:
    hostile = ScoredPassage("a\x1b[2J.md", "one\x1b]0;two\x07 three\x9b31m\tfour\nfive", 0.5)
    async with retrieving(nats_url, lambda _: finding(hostile, warning="so\x1b[0m-so")) as (_, running):
        argv = ("-m", "services.cli", "search", "--grpc", running.server.address, "which?", *options)
        with Terminal((sys.executable, *argv)) as terminal:
            assert await asyncio.to_thread(terminal.end) == 0
    assert not CONTROLS.search(terminal.shown)
    if options:
        (passage,) = json.loads(terminal.shown)["passages"]
        assert (passage["source"], passage["text"]) == (hostile.source, hostile.text)
    else:
        assert terminal.shown.startswith(
            "1. a\\x1b[2J.md (0.50)\n   one\\x1b]0;two\\x07 three\\x9b31m  four\n   five\n"
        )
        assert "penstock search: so\\x1b[0m-so\n" in terminal.shown


async def test_json_is_one_object_with_all_that_is_known(nats_url: str) -> None:
    passage = ScoredPassage("a.md § B", "Text.", 0.5, 3, 8, 2, (("lang", "en"),))
    async with retrieving(nats_url, lambda _: finding(passage, warning="so-so")) as (_, running):
        done = await search(running, "Which gate?", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {
        "corpus": "",
        "passages": [
            {
                "source": "a.md § B",
                "text": "Text.",
                "score": 0.5,
                "start": 3,
                "end": 8,
                "page": 2,
                "metadata": {"lang": "en"},
            }
        ],
        "degraded": "",
        "warning": "so-so",
    }


async def test_what_was_left_out_and_what_is_to_be_known_stand_on_stderr(nats_url: str) -> None:
    found = finding(degraded="dense search", warning="too long")
    async with retrieving(nats_url, lambda _: found) as (_, running):
        done = await search(running, "Which gate?")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [
        "penstock search: nothing was found",
        "penstock search: searched with less: passages found by their words alone, for want of time",
        "penstock search: too long",
    ]


async def test_every_option_reaches_the_retriever(nats_url: str) -> None:
    options = ["--k", str(MAX_FOUND), "--corpus", "docs", "--no-rerank", "--no-degrade", "--deadline", "20"]
    filters = ["--filter", "lang=en", "--filter", "year=2024", "--filter", "lang=de"]
    async with retrieving(nats_url) as (peers, running):
        done = await search(running, "-", *options, *filters, stdin="größer?".encode())
        question = asked(peers)
    assert done.code == 0
    assert question == Retrieve(
        "größer?",
        MAX_FOUND,
        may_degrade=False,
        rerank=False,
        corpus="docs",
        filters=(("lang", ("de", "en")), ("year", ("2024",))),
    )


@pytest.mark.parametrize("k", ["0", str(MAX_FOUND + 1), "many"])
def test_a_wrong_number_of_passages_is_wrong_usage(k: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["q", "--k", k])
    assert ended.value.code == 2
    assert "--k" in capsys.readouterr().err


def test_the_command_offers_as_many_passages_as_a_gateway_gives() -> None:
    assert MAX_FOUND == MAX_GIVEN


def no_corpus(message: Message) -> Answer:
    return NotFound("there is no corpus 'x'")


async def test_a_corpus_that_is_not_there_is_a_failure(nats_url: str) -> None:
    async with retrieving(nats_url, no_corpus) as (_, running):
        done = await search(running, "q", "--corpus", "x")
    assert (done.code, done.out) == (1, "")
    assert "there is no corpus 'x'" in done.err


async def test_a_deadline_that_passes_is_told_by_its_exit_code(nats_url: str) -> None:
    async with retrieving(nats_url, lambda _: None) as (_, running):
        done = await search(running, "q", "--deadline", "0.3")
    assert done.code == 3
    assert done.err.startswith("penstock search: expired: ")


async def test_over_the_limit_of_a_key_the_search_is_shed(nats_url: str, tmp_path: Path) -> None:
    key = new_api_key()
    keys = key_file(tmp_path, key, KeyLimits(requests_per_min=1))
    async with retrieving(nats_url, api_keys=keys) as (_, running):
        first = await search(running, "q", PENSTOCK_API_KEY=key)
        second = await search(running, "q", PENSTOCK_API_KEY=key)
    assert (first.code, second.code) == (0, 4)
    assert "requests_per_min" in second.err


async def test_without_a_retriever_it_says_who_is_missing_and_how_to_have_one(nats_url: str) -> None:
    async with gateway(nats_url) as running:
        done = await search(running, "q")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "penstock search: failed: retriever: no retriever is running: start one, as `penstock up --corpus "
        "PATH` does\n"
    )


async def test_where_no_gateway_is_the_address_is_named(nats_url: str) -> None:
    async with gateway(nats_url) as running:
        pass
    done = await search(running, "q")
    assert done.code == 1
    assert f"no gateway answers at {running.server.address}: " in done.err
