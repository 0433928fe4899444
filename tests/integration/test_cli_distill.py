"""`penstock distill`: a draft is made, gone on with after a kill, measured, and what cannot be is said."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from services.cli.__main__ import main
from shared.engine import LLM, SamplingParams
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.text.tokenizer import TextTokenizer
from shared.training.distillation import ANSWERING_SHARE
from shared.training.heads import head_distillation
from shared.training.llama import Llama, LlamaShape
from shared.training.llama_files import write_model
from tests.support.gguf_files import GgufModel
from tests.support.gguf_tokenizers import byte_level_metadata
from tests.support.models import draft_of, make_tiny_checkpoint

QUICK = ("--layers", "1", "--temperatures", "0", "--threads", "1")
PROMPTS = ("Once upon a time", "The dog", "A girl ran to the", "Tom and Lily")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "asked.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


def distill(model: Path, out: Path, data: Path, minutes: float, *more: str) -> int:
    places = ("--model", str(model), "--out", str(out), "--data", str(data), "--minutes", str(minutes))
    return main(["distill", *places, *QUICK, *more])


def progress_of(out: Path) -> dict[str, float]:
    with safe_open(out / ".distill" / "checkpoint.safetensors", framework="pt") as file:
        found: dict[str, float] = json.loads(file.metadata()["progress"])
        return found


def trained_steps(out: Path) -> int:
    return int(progress_of(out)["step"])


@pytest.fixture(scope="module")
def made(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "draft"
    assert distill(model, out, data, 0.05) == 0
    return out


@pytest.fixture
def draft(made: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(made, tmp_path / "draft")
    return tmp_path / "draft"


def test_what_is_made_is_a_model_with_the_targets_tokenizer(made: Path, model: Path) -> None:
    llm = LLM(made, threads=1)
    assert llm.engine.model_config.num_layers == 1
    assert llm.engine.model_config.vocab_size == LLM(model, threads=1).engine.model_config.vocab_size
    assert TextTokenizer.load(made).vocabulary() == TextTokenizer.load(model).vocabulary()
    assert len(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_the_card_says_how_often_the_draft_is_right_and_whether_it_pays(made: Path) -> None:
    card = (made / "README.md").read_text()
    assert "| held back | 0 | this draft | " in card
    assert "| held back | 0 | n-gram lookup | " in card
    assert "a step of the target " in card
    assert "- held back, temperature 0: on the target's own cores the draft " in card


@pytest.mark.thorough
def test_with_more_minutes_it_learns_on(
    draft: Path, model: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trained_steps(draft)
    assert before > 0
    assert distill(model, draft, data, 0.1) == 0
    assert trained_steps(draft) > before
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"wrote {draft}")


@pytest.mark.thorough(but="False-, which does not pay here: the same command with more")
@pytest.mark.parametrize(
    ("pays", "said"),
    [
        (True, "; try it: penstock up --model "),
        (False, ", which does not pay here: the same command with more"),
    ],
)
def test_the_end_says_whether_to_try_it(
    draft: Path,
    model: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pays: bool,
    said: str,
) -> None:
    monkeypatch.setattr("shared.training.draft_distillation.pays_somewhere", lambda *_: pays)
    assert distill(model, draft, data, 0) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"wrote {draft}{said}")


def test_with_no_minutes_it_is_only_measured(draft: Path, model: Path, data: Path) -> None:
    weights = (draft / "model.safetensors").read_bytes()
    (draft / "README.md").unlink()
    assert distill(model, draft, data, 0) == 0
    assert (draft / "model.safetensors").read_bytes() == weights
    assert "## Whether it pays" in (draft / "README.md").read_text()


@pytest.mark.thorough
def test_prompts_to_measure_with_may_be_others(draft: Path, model: Path, data: Path) -> None:
    other = data.with_name("other.txt")
    other.write_text("The sun was warm. " * 40)
    assert distill(model, draft, data, 0, "--check", str(other)) == 0
    assert "| other | 0 | this draft | " in (draft / "README.md").read_text()


def test_a_run_that_was_killed_goes_on_from_what_it_had(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    command = [sys.executable, "-m", "services.cli", "distill", "--model", str(model), "--out", str(out)]
    command += ["--data", str(data), "--minutes", "60", *QUICK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("answers 1 "), first
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    kept = {path.name: path.read_bytes() for path in (out / ".distill").glob("answers-*.safetensors")}
    assert kept
    assert distill(model, out, data, 0.01) == 0
    assert {name: (out / ".distill" / name).read_bytes() for name in kept} == kept
    assert (out / "model.safetensors").is_file()


@pytest.mark.thorough
def test_a_gguf_file_is_a_target_too(data: Path, tmp_path: Path) -> None:
    folder, file = make_tiny_checkpoint(tmp_path / "target"), tmp_path / "target.gguf"
    ends = {"ggml.bos_token_id": 0, "ggml.eos_token_id": 1}
    tokenizer = byte_level_metadata((folder / "tokenizer.json").read_text(), "gpt-2", **ends)
    GgufModel.of(folder).write(file, tokenizer=tokenizer)
    out = tmp_path / "draft"
    assert distill(file, out, data, 0.01) == 0
    assert TextTokenizer.load(out).vocabulary() == TextTokenizer.load(file).vocabulary()
    assert LLM(out, threads=1).engine.model_config.eos_token_ids == (1,)


def test_a_draft_of_another_target_is_not_gone_on_with(
    draft: Path, model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(draft_of(model, tmp_path / "other"), draft, data, 0.1) == 2
    assert "was begun for another target, kind, size or seed; give another --out" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tied(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose embedding is its head, with the tokenizer of the model."""
    folder = tmp_path_factory.mktemp("tied")
    shutil.copy(model / "tokenizer.json", folder)
    shape = LlamaShape(
        vocab_size=len(TextTokenizer.load(model).vocabulary()),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=384,
    )
    torch.manual_seed(0)
    write_model(Llama(shape), folder, 1, [2])
    return folder


def test_a_head_is_made_of_a_targets_answers_and_learns_on(
    tied: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(head_distillation, "HEAD_ANSWER_TOKENS", 12)
    out = tmp_path / "head"
    options = ("--kind", "head", "--temperatures", "0", "--threads", "1")
    places = ("--model", str(tied), "--out", str(out), "--data", str(data))
    assert main(["distill", *places, *options, "--minutes", "0.01"]) == 0
    before = trained_steps(out)
    assert before > 0
    assert json.loads((out / "config.json").read_text())["target"]["digest"] == checkpoint_digest(tied)
    assert "| held back | 0 | this head | " in (out / "README.md").read_text()
    assert "draft_head" in capsys.readouterr().out.splitlines()[-1]
    ids = load_file(out / "model.safetensors")["ids"]
    more = (progress_of(out)["elapsed_s"] + 0.1) / 60 / (1 - ANSWERING_SHARE)
    assert main(["distill", *places, *options, "--minutes", str(more)]) == 0
    assert trained_steps(out) > before
    assert torch.equal(load_file(out / "model.safetensors")["ids"], ids)
    assert main(["distill", *places, *options[2:], "--minutes", "0.02"]) == 2
    assert "was begun for another target, kind, size or seed" in capsys.readouterr().err


@pytest.fixture(scope="module")
def head(tied: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of `tied` that has learned for a moment."""
    out = tmp_path_factory.mktemp("begun") / "head"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_distillation, "HEAD_ANSWER_TOKENS", 12)
        assert main(head_command(tied, out, data)) == 0
    return out


def head_command(model: Path, out: Path, data: Path, *more: str) -> list[str]:
    options = ("--kind", "head", "--temperatures", "0", "--threads", "1", "--minutes", "0.01", *more)
    return ["distill", "--model", str(model), "--out", str(out), "--data", str(data), *options]


def test_a_head_that_is_named_learns_on_in_another_folder(
    tied: Path, head: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_distillation, "HEAD_ANSWER_TOKENS", 12)
    before = load_file(head / "model.safetensors")
    out = tmp_path / "on"
    assert main([*head_command(tied, out, data, "--begin-with", str(head)), "--minutes", "0"]) == 0
    same = load_file(out / "model.safetensors")
    assert {name: value.tolist() for name, value in same.items()} == {
        name: value.tolist() for name, value in before.items()
    }
    assert main(head_command(tied, out, data, "--begin-with", str(head), "--minutes", "0.03")) == 0
    after = load_file(out / "model.safetensors")
    assert torch.equal(after["ids"], before["ids"])
    assert not torch.equal(after["fuse.weight"], before["fuse.weight"])


def test_a_head_of_another_size_or_no_head_at_all_is_not_begun_with(
    tied: Path, head: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "on"
    assert main(head_command(tied, out, data, "--begin-with", str(head), "--layers", "2")) == 2
    assert f"{head} is no draft head of this target and size" in capsys.readouterr().err
    assert main(head_command(tied, out, data, "--begin-with", str(tmp_path / "nothing"))) == 2
    assert "has no config.json; give the directory of a draft head" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*head_command(tied, out, data, "--begin-with", str(head)), "--kind", "draft"])
    assert "give --kind head with it, or leave it out" in capsys.readouterr().err
    assert not out.exists()


def test_no_model_is_written_over(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (model / "config.json").read_bytes()
    assert distill(model, model, data, 0.1) == 2
    assert f"{model} holds a model already; give another --out" in capsys.readouterr().err
    assert (model / "config.json").read_bytes() == config
    assert not (model / ".distill").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--layers", "90"), "--layers is 90; the target has"),
        (("--hidden", "7"), "--hidden is 7; it must be a multiple of the target's head dimension"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (("--check", "nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (("--model", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_said_in_a_sentence(
    more: tuple[str, ...],
    sentence: str,
    model: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert distill(model, tmp_path / "draft", data, 0.1, *more) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("penstock distill: ")
    assert sentence in complaint
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--minutes", "-1"), "'-1' is not a number of minutes from 0 to 1e+06"),
        (("--minutes", "1000001"), "is not a number of minutes"),
        (("--temperatures", "0,x"), "'x' is not a number"),
        (("--temperatures", "0.001"), "is not a list of temperatures, each 0 or from 0.01 to 100"),
        (("--threads", "0"), "'0' is not a whole number of 1 or more"),
    ],
)
def test_a_bad_option_is_named(
    more: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["distill", "--model", "m", "--out", str(tmp_path / "d"), *more])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
