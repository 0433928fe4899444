"""Commands can be typed into `penstock chat` beside messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.integration.generate_peer import Context, GeneratePeer, end, prompt, text
from tests.support.terminal import TIMEOUT_S, Terminal

PROMPT = "> "


@pytest.fixture
def peer() -> Iterator[GeneratePeer]:
    peer = GeneratePeer()
    peer.script = answer
    kind = pb.MODEL_KIND_GENERATION
    peer.models = [
        pb.Model(name="small", kind=kind, context_tokens=100),
        pb.Model(name="small:sql", kind=kind, context_tokens=100, base="small"),
        pb.Model(name="embedder", kind=pb.MODEL_KIND_EMBEDDING),
    ]
    yield peer
    peer.server.stop(None).wait(TIMEOUT_S)


def answer(request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
    yield prompt()
    yield text(f"answer {len(request.chat.messages)}", 7)
    yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)


@pytest.fixture
def terminal(peer: GeneratePeer) -> Iterator[Terminal]:
    command = (sys.executable, "-m", "services.cli", "chat", "--grpc", peer.address)
    with Terminal(command) as terminal:
        terminal.until(PROMPT)
        yield terminal


def told(terminal: Terminal, line: str) -> str:
    """Return what is shown for a line."""
    terminal.enter(f"{line}\n")
    return terminal.until("\n" + PROMPT).removeprefix(f"{line}\n").removesuffix("\n" + PROMPT)


def test_a_model_is_chosen_among_those_that_are_served(peer: GeneratePeer, terminal: Terminal) -> None:
    listed = "* small · 100 tokens of context\n  small:sql · 100 tokens of context"
    assert told(terminal, "/model") == listed
    assert told(terminal, "/model big") == "there is no big; there are small, small:sql"
    assert told(terminal, "/model small:sql") == "small:sql answers from now on"
    told(terminal, "one")
    assert peer.requests.get_nowait().model == "small:sql"


def test_the_system_message_is_shown_set_and_left_out(peer: GeneratePeer, terminal: Terminal) -> None:
    assert told(terminal, "/system") == "there is no system message"
    assert told(terminal, "/system be  brief") == "the system message is: be  brief"
    told(terminal, "one")
    assert told(terminal, "/system off") == "there is no system message"
    told(terminal, "two")
    roles = [[turn.role for turn in peer.requests.get_nowait().chat.messages] for _ in range(2)]
    assert roles == [["system", "user"], ["user", "assistant", "user"]]


def test_sampling_is_set_for_the_next_answers(peer: GeneratePeer, terminal: Terminal) -> None:
    assert told(terminal, "/set") == "sampling is the model's own"
    assert told(terminal, "/set temperature 0.5") == "temperature 0.5"
    assert told(terminal, "/set max_tokens 7") == "temperature 0.5, max_tokens 7"
    assert told(terminal, "/set temperature -") == "max_tokens 7"
    assert told(terminal, "/set ignore_eos maybe") == "ignore_eos is on or off"
    assert told(terminal, "/set max_tokens x").startswith("max_tokens is x: it is an integer from ")
    assert told(terminal, "/set warmth 1").startswith("there is no warmth; there are ")
    told(terminal, "one")
    sampling = peer.requests.get_nowait().sampling
    assert sampling.max_tokens == 7
    assert not sampling.HasField("temperature")


def test_the_last_question_is_answered_once_more(peer: GeneratePeer, terminal: Terminal) -> None:
    assert told(terminal, "/retry") == "there is no question yet"
    told(terminal, "one")
    told(terminal, "/retry")
    told(terminal, "two")
    sent = [[turn.content for turn in peer.requests.get_nowait().chat.messages] for _ in range(3)]
    assert sent == [["one"], ["one"], ["one", "answer 1", "two"]]


@pytest.mark.thorough
def test_a_retry_that_fails_leaves_the_old_answer(peer: GeneratePeer, terminal: Terminal) -> None:
    told(terminal, "one")

    def failing(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield end(pb.OUTCOME_SHED, error=pb.Error(code="overloaded", message="no room"))

    peer.script = failing
    told(terminal, "/retry")
    peer.script = answer
    assert told(terminal, "two") == "answer 3"


def test_a_conversation_is_kept_and_gone_on_with(
    peer: GeneratePeer, terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "a talk.json"
    told(terminal, "/system be brief")
    told(terminal, "one")
    assert told(terminal, f"/save {file}").startswith("2 messages are in ")
    assert file.stat().st_mode & 0o777 == 0o600
    told(terminal, "/clear")
    told(terminal, "/system off")
    assert told(terminal, f"/load {file}") == "the conversation has 2 messages"
    assert told(terminal, "two") == "answer 4"
    assert told(terminal, f"/save {file}").startswith("4 messages are in ")


@pytest.mark.thorough(but='[] | {"penstock_chat": 2}')
@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"penstock_chat": 2}', b"\xff", b'{"penstock_chat": 1, "model": "", "system": ""}'],
)
def test_another_file_is_neither_loaded_nor_lost(terminal: Terminal, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "notes"
    file.write_bytes(data)
    assert told(terminal, f"/load {file}").replace("\n", "").endswith("is no conversation that /save wrote")
    assert "name another file" in told(terminal, f"/save {file}")
    assert file.read_bytes() == data


@pytest.mark.thorough
def test_a_saved_conversation_is_json_that_others_can_read(terminal: Terminal, tmp_path: Path) -> None:
    told(terminal, "one")
    told(terminal, f"/save {tmp_path / 'talk'}")
    saved = json.loads((tmp_path / "talk").read_text())
    assert saved["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer 1"},
    ]


@pytest.mark.thorough
def test_near_the_end_of_the_context_it_is_said_what_to_do(peer: GeneratePeer, terminal: Terminal) -> None:
    def script(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield prompt()
        yield text("so it is", 7)
        usage = pb.Usage(prompt_tokens=70, completion_tokens=peer_tokens[0])
        yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP, usage=usage)

    peer_tokens = [9]
    peer.script = script
    assert told(terminal, "one") == "so it is"
    peer_tokens[0] = 10
    assert told(terminal, "two").endswith(
        "the conversation takes 80 of the model's 100 tokens: /clear begins anew, /save FILE keeps it"
    )


def test_an_answer_that_is_cut_says_how_the_next_one_is_not(peer: GeneratePeer, terminal: Terminal) -> None:
    def script(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield prompt(sampling=pb.Sampling(max_tokens=3))
        yield text("so it", 7)
        usage = pb.Usage(prompt_tokens=2, completion_tokens=3)
        yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_LENGTH, usage=usage)

    peer.script = script
    assert told(terminal, "one").endswith(
        "the answer was cut after 3 tokens: /set max_tokens 6 lets the next one go on for longer"
    )
