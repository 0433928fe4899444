"""`penstock router calibrate` asks two models by gRPC and says which threshold to write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.router.router import main
from shared.files.virtual_model_file import load_virtual_models
from tests.integration.generate_peer import Context, GeneratePeer, end

COUNT = 40
UNSURE_EVERY = 4


@pytest.fixture
def peer() -> Iterator[GeneratePeer]:
    """The small model is wrong where it is unsure, one question in four; the large one is right."""
    peer = GeneratePeer()
    peer.script = answer
    yield peer
    peer.server.stop(None).wait(30)


def answer(request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
    number = int(request.chat.messages[0].content.split()[-1])
    unsure = request.model == "small" and number % UNSURE_EVERY in (0, 1)
    logprob = pb.Logprob(token_id=5, logprob=-2.0 - number / 100 if unsure else -0.1 - number / 1000)
    text = "no idea" if unsure else f"it is {number}"
    yield pb.GenerateEvent(text=pb.TextDelta(text=text, token_ids=[5], logprobs=[logprob]))
    yield end(pb.OUTCOME_FINISHED)


def questions(folder: Path) -> str:
    rows = [{"text": f"What is {n}", "accepted": [rf"\b{n}\b"]} for n in range(COUNT)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "rows.jsonl")


def calibrate(peer: GeneratePeer, folder: Path, *argv: str) -> int:
    models = ("--small", "small", "--large", "large", "--grpc", peer.address)
    return main(["calibrate", questions(folder), *models, *argv])


def test_the_curve_and_a_rule_for_the_file_are_printed(
    peer: GeneratePeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(peer, tmp_path) == 0
    said = capsys.readouterr().out
    nobody, *_, everybody = [line.split() for line in said.splitlines()[1 : said.splitlines().index("")]]
    assert nobody[:3] == ["nobody", "0%", "50.0%"]
    assert everybody[:3] == ["everybody", "100%", "100.0%"]
    assert "50% are asked anew and 100.0% are right (50.0% by small, 100.0% where large" in said
    rule = [line for line in said.splitlines() if line.startswith(("to =", "cascade ="))]
    file = tmp_path / "models.toml"
    file.write_text("\n".join(["[auto]", "fallback = []", "[[auto.rules]]", *rule]))
    (model,) = load_virtual_models(file)
    (read,) = model.rules
    assert read.cascade is not None
    assert -2.0 < read.cascade.min_logprob < -0.2


def test_both_are_asked_each_question_without_earlier_answers_or_other_models(
    peer: GeneratePeer, tmp_path: Path
) -> None:
    assert calibrate(peer, tmp_path, "--temperature", "0", "--retrieve", "--corpus", "pages") == 0
    asked = [peer.requests.get(timeout=30) for _ in range(2 * COUNT)]
    assert [each.model for each in asked] == ["small", "large"] * COUNT
    first = asked[0]
    assert first.cache.mode == pb.CACHE_MODE_OFF
    assert first.HasField("fallback")
    assert not first.fallback.allowed
    assert (first.sampling.logprobs, first.sampling.temperature) == (0, 0.0)
    assert (first.retrieval.enabled, first.retrieval.corpus) == (True, "pages")


def test_a_call_that_fails_ends_it_with_its_reason(
    peer: GeneratePeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield end(pb.OUTCOME_FAILED, error=pb.Error(code="invalid", message="there is no model large"))

    peer.script = refuse
    assert calibrate(peer, tmp_path) == 1
    assert "small did not answer 'What is 0': failed: there is no model large" in capsys.readouterr().err


def test_questions_that_cannot_be_read_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["calibrate", str(tmp_path / "none"), "--small", "a", "--large", "b", "--grpc", "127.0.0.1:1"]
    assert main(argv) == 2
    assert "cannot be read" in capsys.readouterr().err
