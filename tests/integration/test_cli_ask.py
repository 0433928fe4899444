"""`penstock ask` as a process, against a real gRPC server that streams what the test says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.integration.generate_peer import Context, GeneratePeer, end, finished, prompt, text
from tests.support.certificate import make_certificate
from tests.support.terminal import Terminal

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 40
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def peer() -> Iterator[GeneratePeer]:
    peer = GeneratePeer()
    yield peer
    peer.server.stop(None).wait(TIMEOUT_S)


def ask(peer: GeneratePeer, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("--grpc", peer.address, *argv),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environ(),
    )


@pytest.fixture(autouse=True)
def _ended_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


def test_a_pipe_that_stays_silent_is_told_and_its_end_sends_the_question(peer: GeneratePeer) -> None:
    peer.script = finished
    asking = subprocess.Popen(
        command("--grpc", peer.address, "what failed?"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
    )
    assert asking.stderr is not None
    assert b"reading what is piped in" in asking.stderr.readline()
    out, _ = asking.communicate(b"a log\n", timeout=TIMEOUT_S)
    assert (asking.returncode, out.decode()) == (0, "Hello wörld\n")
    assert peer.requests.get_nowait().chat.messages[0].content == "a log\n\nwhat failed?"


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "services.cli", "ask", *argv]


def environ() -> dict[str, str]:
    """Without a width, as where there is no terminal."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**inherited, "PYTHONPATH": str(REPOSITORY)}


def test_text_goes_to_stdout_and_sources_to_stderr(peer: GeneratePeer) -> None:
    peer.script = finished
    before_us = time.time_ns() // 1000
    done = ask(peer, "hi", "--max-tokens", "3")
    assert (done.returncode, done.stdout) == (0, "Hello wörld\n")
    assert done.stderr == "[1] README.md (0.50)\n"
    sent = peer.requests.get_nowait()
    assert (sent.chat.messages[0].content, sent.sampling.max_tokens) == ("hi", 3)
    assert before_us < sent.client_sent_unix_us < time.time_ns() // 1000


def test_sources_are_numbered_as_the_answer_cites_them_and_those_left_out_come_last(
    peer: GeneratePeer,
) -> None:
    def script(*_: object) -> Iterator[pb.GenerateEvent]:
        found = [("a.md", 2, 0), ("b.pdf", 0, 7), ("c\x1b.md", 1, 0)]
        passages = [
            pb.RetrievedPassage(source=source, score=0.5, prompt_place=place, page=page)
            for source, place, page in found
        ]
        yield prompt(
            passages=passages,
            warning="the prompt had no room for 1 of 3 passages",
            retrieval_query="Where is Oslo?\nHow big\x1b is it?",
        )
        yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)

    peer.script = script
    assert ask(peer, "hi", "--retrieve").stderr.splitlines() == [
        "[1] c\x1b.md (0.50)",
        "[2] a.md (0.50)",
        "[-] b.pdf, page 7 (0.50), not in the prompt",
        "penstock ask: searched for: Where is Oslo? How big\x1b is it?",
        "penstock ask: the prompt had no room for 1 of 3 passages",
    ]


HOSTILE = "one\x1b]0;two\x07 three\x9b31m\tfour\rfive\n"


def hostile(*_: object) -> Iterator[pb.GenerateEvent]:
    passage = pb.RetrievedPassage(source="a\x1b[2J.md", score=0.5, prompt_place=1)
    yield prompt(passages=[passage], warning="so\x1b[0m-so", retrieval_query="what\x1bc?")
    yield text(HOSTILE[:4], 7)
    yield text(HOSTILE[4:], 8)
    error = pb.Error(code="internal", message="it\x1b[1m broke")
    yield end(pb.OUTCOME_FAILED, error=error)


def test_no_answer_moves_the_cursor_of_a_terminal(peer: GeneratePeer) -> None:
    peer.script = hostile
    with Terminal(command("--grpc", peer.address, "hi")) as terminal:
        terminal.end()
    assert not CONTROLS.search(terminal.shown)
    assert terminal.shown.splitlines() == [
        "[1] a\\x1b[2J.md (0.50)",
        "penstock ask: searched for: what\\x1bc?",
        "penstock ask: so\\x1b[0m-so",
        "one\\x1b]0;two\\x07 three\\x9b31m\tfour\\x0dfive",
        "penstock ask: failed: it\\x1b[1m broke",
    ]


@pytest.mark.thorough
def test_json_on_a_terminal_means_the_same_and_moves_no_cursor(peer: GeneratePeer) -> None:
    peer.script = hostile
    with Terminal(command("--grpc", peer.address, "hi", "--json")) as terminal:
        terminal.end()
    assert not CONTROLS.search(terminal.shown)
    events = [json.loads(line) for line in terminal.shown.splitlines()]
    assert "".join(event.get("text", "") for event in events) == HOSTILE


def test_a_pipe_gets_an_answer_byte_for_byte(peer: GeneratePeer) -> None:
    peer.script = hostile
    argv = command("--grpc", peer.address, "hi")
    done = subprocess.run(argv, capture_output=True, timeout=TIMEOUT_S, check=False, env=environ())
    assert done.stdout == HOSTILE.encode()


def test_the_timeline_follows_the_text_in_the_order_of_time(peer: GeneratePeer) -> None:
    peer.script = finished
    lines = ask(peer, "hi", "--timeline").stdout.splitlines()
    assert max(len(line) for line in lines) == 80
    assert lines[0] == "Hello wörld"
    assert [line.split()[:3] for line in lines[3:6]] == [
        ["gateway.admit", "0.00", "1.00"],
        ["prefill.compute", "1.00", "2.00"],
        ["decode", "3.00", "7.00"],
    ]
    assert lines[5].rstrip().endswith("█" * 29)
    assert lines[6] == "first token 3.00 ms, total 10.00 ms"


def test_json_is_one_object_per_event_with_the_documented_fields(peer: GeneratePeer) -> None:
    peer.script = finished
    events = [json.loads(line) for line in ask(peer, "hi", "--json").stdout.splitlines()]
    assert events[0] == {
        "event": "prompt",
        "request_id": "g.1",
        "model": "m",
        "prompt_tokens": 2,
        "seed": 5,
        "passages": [
            {
                "source": "README.md",
                "text": "It is so.",
                "score": 0.5,
                "start": 0,
                "end": 0,
                "page": 0,
                "metadata": {},
                "prompt_place": 1,
            }
        ],
        "degraded": "",
        "warning": "",
        "retrieval_query": "",
        "sampling": {},
    }
    assert events[1] == {
        "event": "text",
        "text": "Hello",
        "token_ids": [7],
        "position": 2,
        "logprobs": [{"token_id": 7, "logprob": -0.5, "top": [{"token_id": 8, "logprob": -1.0}]}],
    }
    assert events[2] == {"event": "text", "text": " wörld", "token_ids": [8, 9], "position": 3}
    assert list(events[3]) == ["event", "outcome", "finish_reason", "usage", "timeline", "citations", "error"]
    assert (events[3]["outcome"], events[3]["finish_reason"], events[3]["error"]) == (
        "finished",
        "length",
        None,
    )
    assert events[3]["usage"]["completion_tokens"] == 3
    assert events[3]["timeline"]["ttft_us"] == 3000
    assert events[3]["timeline"]["phases"][1] == {"name": "gateway.admit", "start_us": 0, "duration_us": 1000}


def cut(tokens: int, max_tokens: int) -> Callable[..., Iterator[pb.GenerateEvent]]:
    """An answer of so many tokens that ends for want of room."""

    def script(*_: object) -> Iterator[pb.GenerateEvent]:
        yield prompt(sampling=pb.Sampling(max_tokens=max_tokens))
        yield text("Hello", 7)
        usage = pb.Usage(completion_tokens=tokens)
        yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_LENGTH, usage=usage)

    return script


def test_an_answer_that_the_default_limit_cuts_says_so_and_how_to_go_on(peer: GeneratePeer) -> None:
    peer.script = cut(512, 512)
    done = ask(peer, "hi")
    assert (done.returncode, done.stdout) == (0, "Hello\n")
    assert done.stderr == (
        "penstock ask: the answer was cut after 512 tokens: --max-tokens 1024 lets it go on for longer\n"
    )
    assert not peer.requests.get_nowait().sampling.HasField("max_tokens")


def test_an_answer_that_fills_the_context_says_so(peer: GeneratePeer) -> None:
    peer.script = cut(100, 512)
    told = "penstock ask: the answer was cut after 100 tokens: the model's context is full\n"
    assert ask(peer, "hi").stderr == told


def test_a_limit_that_was_asked_for_is_no_news(peer: GeneratePeer) -> None:
    peer.script = cut(3, 3)
    assert ask(peer, "hi", "--max-tokens", "3").stderr == ""


def test_json_has_the_sampling_in_force_as_it_was_said(peer: GeneratePeer) -> None:
    def script(*_: object) -> Iterator[pb.GenerateEvent]:
        yield prompt(sampling=pb.Sampling(temperature=0.2, top_k=0, top_p=0.9, max_tokens=512))
        yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)

    peer.script = script
    event = json.loads(ask(peer, "hi", "--json").stdout.splitlines()[0])
    assert event["sampling"] == {"temperature": 0.2, "top_k": 0, "top_p": 0.9, "max_tokens": 512}


def test_json_has_the_log_probabilities_of_the_prompt(peer: GeneratePeer) -> None:
    def script(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        logprobs = [pb.Logprob(token_id=7), pb.Logprob(token_id=8, logprob=-0.5)]
        yield pb.GenerateEvent(prompt_logprobs=pb.PromptLogprobs(position=0, logprobs=logprobs))
        yield end(pb.OUTCOME_FINISHED)

    peer.script = script
    first = json.loads(ask(peer, "hi", "--json", "--prompt-logprobs", "0").stdout.splitlines()[0])
    assert (first["event"], first["position"]) == ("prompt_logprobs", 0)
    assert [(each["token_id"], each["logprob"]) for each in first["logprobs"]] == [(7, 0.0), (8, -0.5)]
    assert peer.requests.get(timeout=60).sampling.prompt_logprobs == 0


@pytest.mark.thorough(but="3-StatusCode.DEADLINE_EXCEEDED-3-expired | 5-StatusCode.INVALID_ARGUMENT-1-failed")
@pytest.mark.parametrize(
    ("outcome", "status", "code", "word"),
    [
        (pb.OUTCOME_FAILED, grpc.StatusCode.INTERNAL, 1, "failed"),
        (pb.OUTCOME_FAILED, grpc.StatusCode.INVALID_ARGUMENT, 1, "failed"),
        (pb.OUTCOME_EXPIRED, grpc.StatusCode.DEADLINE_EXCEEDED, 3, "expired"),
        (pb.OUTCOME_SHED, grpc.StatusCode.RESOURCE_EXHAUSTED, 4, "shed"),
        (pb.OUTCOME_CANCELLED, grpc.StatusCode.CANCELLED, 5, "cancelled"),
    ],
)
def test_every_outcome_has_its_exit_code_and_word(
    peer: GeneratePeer, outcome: pb.Outcome, status: grpc.StatusCode, code: int, word: str
) -> None:
    def script(_request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        yield prompt()
        yield text("Hel", 7)
        error = pb.Error(code="x", message="the reason", hop="decode", retry_after_ms=250)
        yield end(outcome, error=error)
        context.abort(status, "the reason")

    peer.script = script
    done = ask(peer, "hi")
    assert (done.returncode, done.stdout) == (code, "Hel\n")
    assert done.stderr == f"penstock ask: {word}: the reason (at decode); try again in 250 ms\n"
    done = ask(peer, "hi", "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["outcome"], last["finish_reason"]) == (code, word, None)
    assert last["error"] == {"code": "x", "message": "the reason", "hop": "decode", "retry_after_ms": 250}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, 3),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 4),
        (grpc.StatusCode.CANCELLED, 5),
        (grpc.StatusCode.INVALID_ARGUMENT, 1),
    ],
)
def test_a_call_without_a_terminal_event_ends_by_its_status(
    peer: GeneratePeer, status: grpc.StatusCode, code: int
) -> None:
    def script(_request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        yield from ()
        context.abort(status, "the reason")

    peer.script = script
    done = ask(peer, "hi")
    assert done.returncode == code
    assert "the reason" in done.stderr


def test_a_stream_that_just_stops_is_a_failure(peer: GeneratePeer) -> None:
    done = ask(peer, "hi", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "protocol"


def test_a_gateway_that_is_not_there_is_a_sentence(peer: GeneratePeer) -> None:
    peer.server.stop(None).wait(TIMEOUT_S)
    done = ask(peer, "hi")
    assert done.returncode == 1
    assert f"no gateway answers at {peer.address}" in done.stderr


def test_ctrl_c_cancels_the_call_and_exits_with_130(peer: GeneratePeer) -> None:
    def script(_request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        yield text("Hel", 7)
        peer.gone.wait(TIMEOUT_S)

    peer.script = script
    asking = subprocess.Popen(
        command("--grpc", peer.address, "hi"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
    )
    assert asking.stdout is not None
    assert asking.stdout.read(3) == b"Hel"  # it streams: the call is far from its end
    asking.send_signal(signal.SIGINT)
    out, err = asking.communicate(timeout=TIMEOUT_S)
    assert asking.returncode == 130
    assert (out, err) == (b"\n", b"penstock ask: cancelled: interrupted from the keyboard\n")
    assert peer.gone.wait(TIMEOUT_S)


def test_a_reader_that_goes_away_cancels_the_call(peer: GeneratePeer) -> None:
    def script(_request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        while context.is_active():
            yield text("word ", 7)

    peer.script = script
    asking = subprocess.Popen(
        command("--grpc", peer.address, "hi"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
    )
    assert asking.stdout is not None
    assert asking.stderr is not None
    asking.stdout.read(10)
    asking.stdout.close()
    assert asking.wait(TIMEOUT_S) == 141
    assert asking.stderr.read() == b""
    asking.stderr.close()
    assert peer.gone.wait(TIMEOUT_S)


def test_a_deadline_bounds_the_call_even_when_the_gateway_does_not(
    peer: GeneratePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.cli.ask import ask as ask_command  # noqa: PLC0415 (sets gRPC's verbosity when imported)
    from services.cli.ask import generate_call  # noqa: PLC0415

    monkeypatch.setattr(generate_call, "BACKSTOP_S", 0.1)

    def script(_request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        peer.gone.wait(TIMEOUT_S)
        yield prompt()

    peer.script = script
    assert ask_command.main(["hi", "--grpc", peer.address, "--deadline", "0.1"]) == 3


def test_the_gateway_may_be_named_by_the_environment(
    peer: GeneratePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.cli.ask import ask as ask_command  # noqa: PLC0415 (sets gRPC's verbosity when imported)

    peer.script = finished
    monkeypatch.setenv("PENSTOCK_GRPC", peer.address)
    assert ask_command.main(["hi"]) == 0


def test_the_address_comes_from_stack_json(peer: GeneratePeer, tmp_path: Path) -> None:
    peer.script = finished
    (tmp_path / "stack.json").write_text(json.dumps({"grpc": peer.address}))
    done = subprocess.run(
        command("hi", "--state-dir", str(tmp_path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environ(),
    )
    assert (done.returncode, done.stdout) == (0, "Hello wörld\n")


def test_the_key_goes_with_the_call(peer: GeneratePeer, tmp_path: Path) -> None:
    peer.script = finished
    file = tmp_path / "key"
    file.write_text("psk_secret\n")
    assert ask(peer, "hi", "--api-key-file", str(file)).returncode == 0
    assert ask(peer, "hi").returncode == 0
    assert [peer.authorization.get_nowait() for _ in range(2)] == [["Bearer psk_secret"], []]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_over_tls_it_talks_to_who_has_a_certificate_of_the_authority_alone(tmp_path: Path) -> None:
    own, other = make_certificate(tmp_path / "own"), make_certificate(tmp_path / "other")
    pair = (own.key.read_bytes(), own.certificate.read_bytes())
    peer = GeneratePeer(
        grpc.ssl_server_credentials([pair], other.certificate.read_bytes(), require_client_auth=True)
    )
    peer.script = finished
    mine = ("--tls-cert", str(other.certificate), "--tls-key", str(other.key))
    try:
        done = ask(peer, "hi", "--tls-ca", str(own.certificate), *mine)
        assert (done.returncode, done.stdout) == (0, "Hello wörld\n"), done.stderr
        for wrong in (("--tls-ca", str(other.certificate), *mine), ("--tls-ca", str(own.certificate)), ()):
            done = ask(peer, "hi", *wrong)
            assert done.returncode == 1
            assert "no gateway answers" in done.stderr
    finally:
        peer.server.stop(None).wait(TIMEOUT_S)


def test_files_that_cannot_be_used_are_wrong_usage(peer: GeneratePeer) -> None:
    done = ask(peer, "hi", "--tls-ca", "/nowhere/at/all")
    assert (done.returncode, done.stderr) == (
        2,
        "penstock ask: /nowhere/at/all cannot be read (No such file or directory)\n",
    )


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"grpc": 5}'])
def test_a_damaged_stack_json_is_a_sentence(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from services.cli.ask import ask as ask_command  # noqa: PLC0415 (sets gRPC's verbosity when imported)

    (tmp_path / "stack.json").write_text(content)
    assert ask_command.main(["hi", "--state-dir", str(tmp_path)]) == 1
    assert "restart the stack" in capsys.readouterr().err


# ---- a gateway that is gone ----


def test_an_answer_goes_on_at_another_gateway_and_is_shown_once(peer: GeneratePeer) -> None:
    def script(_request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateEvent]:
        if peer.resumes.empty():
            yield prompt(resume_token="token-a")
            yield text("Hello", 7, 8, position=2)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        yield prompt(resume_token="token-b")
        yield text(" world", 9, position=4)
        yield end(pb.OUTCOME_FINISHED)

    peer.script = script
    asked = ask(peer, "hi")
    assert (asked.returncode, asked.stdout) == (0, "Hello world\n"), asked.stderr
    resumed = peer.resumes.get_nowait()
    assert (resumed.token, resumed.received_tokens) == ("token-a", 2)
    assert peer.requests.get_nowait().resumable
