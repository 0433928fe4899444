"""Teaching an adapter: rows with branches, the adapter itself, its files, a run that is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from shared.demo.chats import draw_requests
from shared.demo.invent import Inventor, default_vocabulary
from shared.demo.lesson_rows import branched_row, lesson_row
from shared.demo.lessons.lesson import Lesson, LessonPlan
from shared.demo.lora import LoraLinear, add_adapter, export_adapter, import_adapter, without_adapter
from shared.demo.teach import Teacher, keep_row, learn_row, main, read_chats, step_maker
from shared.engine import LLM
from shared.errors import InvalidRequest
from shared.text.model_source import DEMO_MODEL
from shared.text.tokenizer import TextTokenizer
from shared.training.llama import Llama, LlamaShape
from shared.training.llama_files import load_model, write_model
from tests.support.gguf_files import GgufModel

SHAPE = LlamaShape(
    vocab_size=4096, hidden_size=32, intermediate_size=48, num_hidden_layers=2, max_position_embeddings=1024
)
LESSON = Lesson(
    "site",
    ("The night relay holds 16 files.", "The pump weighs 4 kg."),
    (("How many files fit into the night relay?", "16"), ("How heavy is the pump?", "4 kg")),
)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.load(DEMO_MODEL)


@pytest.fixture
def model() -> Llama:
    torch.manual_seed(0)
    small = Llama(SHAPE)
    for parameter in small.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.1)
    return small


def moved(model: Llama) -> Llama:
    """The model with an adapter that changes something."""
    add_adapter(model, rank=4, alpha=8.0)
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            torch.nn.init.normal_(layer.lora_b, std=0.3)
    return model


def test_a_branch_computes_what_its_prompt_would_alone(model: Llama) -> None:
    prompts = [[5, 6, 7, 8, 20, 21], [5, 6, 7, 8, 30], [5, 6, 7, 8, 40, 41, 42]]
    answers = [[50, 51], [60, 61, 62], [70]]
    row = branched_row(prompts, answers)
    together = model.head(model.model(row.ids, row.places, row.seen))[0, row.positions]
    alone = torch.cat(
        [
            model(torch.tensor([[*prompt, *answer]]))[0, len(prompt) - 1 : -1]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
    )
    assert torch.allclose(together, alone, atol=1e-5)
    assert row.targets.tolist() == [50, 51, 60, 61, 62, 70]
    assert row.answers.tolist() == [0, 0, 1, 1, 1, 2]


def test_a_row_says_the_passages_once(tokenizer: TextTokenizer) -> None:
    row = lesson_row(LESSON, tokenizer)
    text = tokenizer.decode(row.ids[0].tolist())
    assert text.count("The night relay holds 16 files.") == 1
    assert text.count("How many files") == text.count("the pump?") == 1
    assert tokenizer.decode(row.targets.tolist()) == "164 kg"


def test_a_fresh_adapter_changes_nothing_and_alone_is_trained(model: Llama) -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.autocast("cpu", torch.bfloat16):
        before = model(ids)
        add_adapter(model, rank=4, alpha=8.0)
        assert torch.allclose(before, model(ids), atol=2e-2)
    trained = {name.rsplit(".", 1)[1] for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {"lora_a", "lora_b"}


def test_without_its_adapter_a_model_answers_as_before(model: Llama) -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    fresh = Llama(SHAPE)
    fresh.load_state_dict(model.state_dict())
    add_adapter(fresh, rank=4, alpha=8.0)
    moved(model)
    with torch.autocast("cpu", torch.bfloat16):
        adapted = model(ids)
        with without_adapter(model):
            assert torch.equal(model(ids), fresh(ids))
        assert torch.equal(model(ids), adapted)
        assert not torch.allclose(adapted, fresh(ids), atol=1e-2)


def test_the_engine_computes_an_exported_adapter_as_it_was_trained(model: Llama, tmp_path: Path) -> None:
    write_model(model, tmp_path / "base", 1, [2])
    ids = [5, 6, 7, 8]
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(torch.tensor([ids]))[0].float()
        adapted = moved(model)(torch.tensor([ids]))[0].float()
    export_adapter(model, tmp_path / "answers", "somebody/base")
    llm = LLM(tmp_path / "base", backend="torch")
    assert llm.load_adapter("answers", tmp_path / "answers").rank == 4
    near = 0.05 * adapted.abs().max().item()
    assert torch.allclose(llm.logits(ids, "answers"), adapted, atol=near)
    assert not torch.allclose(plain, adapted, atol=4 * near)


def test_a_run_may_begin_with_an_exported_adapter_of_its_shape(model: Llama, tmp_path: Path) -> None:
    fresh = Llama(SHAPE)
    fresh.load_state_dict(model.state_dict())
    export_adapter(moved(model), tmp_path / "four", "somebody/base")
    add_adapter(fresh, rank=4, alpha=8.0)
    import_adapter(fresh, tmp_path / "four")
    for (name, value), (_, loaded) in zip(model.named_parameters(), fresh.named_parameters(), strict=True):
        assert not value.requires_grad or torch.equal(value.bfloat16().float(), loaded), name
    with pytest.raises(ValueError, match="other layers or another rank"):
        Teacher(Llama(SHAPE), tmp_path / "work", budget_s=1.0, start=tmp_path / "four")


def test_an_adapter_keeps_a_share_of_the_one_that_it_began_with(model: Llama, tmp_path: Path) -> None:
    export_adapter(moved(model), tmp_path / "start", "somebody/base")
    trained = {name: value + 1.0 for name, value in model.named_parameters() if value.requires_grad}
    for share, left in ((0.0, 1.0), (0.25, 0.75), (1.0, 0.0)):
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name in trained:
                    value.copy_(trained[name])
        import_adapter(model, tmp_path / "start", share)
        for name, value in model.named_parameters():
            if name in trained:
                assert torch.allclose(value, trained[name] - 1.0 + left, atol=0.01), (share, name)


@pytest.mark.parametrize("options", [("--keep", "0.3"), ("--keep", "1.5", "--start", "x")])
def test_a_share_of_no_adapter_cannot_be_kept(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["teach", "--model", "m", "--base-name", "b", "--books", "b", "--work-dir", "w", "--out", "o"]
    monkeypatch.setattr("sys.argv", [*needed, *options])
    with pytest.raises(SystemExit):
        main()
    assert "--keep is a share of --start's weights" in capsys.readouterr().err


def test_a_lower_rate_learns_less_in_a_step(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    moves = []
    for rate in (1.0, 0.1):
        torch.manual_seed(1)
        teacher = Teacher(Llama(SHAPE), tmp_path / str(rate), budget_s=1e6, rate=rate)
        teacher.take_step(
            step_maker(LessonPlan(Inventor.seeded(1, default_vocabulary()), []), [], tokenizer, 0)()
        )
        layers = [layer for layer in teacher.model.modules() if isinstance(layer, LoraLinear)]
        moves.append(sum(layer.lora_b.abs().sum().item() for layer in layers))
    assert moves[1] == pytest.approx(0.1 * moves[0], rel=0.05)


def test_answers_are_learned_and_a_chat_is_kept(
    model: Llama, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"request": "Hello!", "answer": "Good morning to you."}) + "\n")
    row, chat = lesson_row(LESSON, tokenizer), read_chats(chats, tokenizer)[0]
    moved(model)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses, drifts = [], []
    for _ in range(25):
        optimizer.zero_grad()
        losses.append(learn_row(model, row, 1.0)[0])
        drifts.append(keep_row(model, chat, 1.0))
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
    assert drifts[-1] < 0.7 * drifts[0]


def test_a_stopped_run_goes_on_where_it_was(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    def run(steps: int) -> Teacher:
        torch.manual_seed(1)
        teacher = Teacher(Llama(SHAPE), tmp_path, budget_s=1e6)
        first = teacher.loop.progress.step
        plan = LessonPlan(Inventor.seeded(first, default_vocabulary()), [])
        make = step_maker(plan, [], tokenizer, first)
        teacher.loop.run("lessons", [make() for _ in range(steps)], teacher.take_step)
        return teacher

    first = run(2)
    again = Teacher(Llama(SHAPE), tmp_path, budget_s=1e6)
    assert again.loop.progress == first.loop.progress
    for (name, value), (_, loaded) in zip(
        first.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert not value.requires_grad or torch.equal(value, loaded), name
    assert run(1).loop.progress.step == 3


def test_a_base_is_read_from_a_gguf_file_too(model: Llama, tmp_path: Path) -> None:
    write_model(model, tmp_path / "base", 1, [2])
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    config["rope_parameters"] = {"rope_theta": config["rope_theta"], "rope_type": "default"}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    GgufModel.of(tmp_path / "base").write(tmp_path / "base.gguf")
    loaded = load_model(tmp_path / "base.gguf")
    assert loaded.shape == SHAPE
    for name, value in load_model(tmp_path / "base").state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    for file in DEMO_MODEL.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["Qwen2ForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidRequest, match="Qwen2ForCausalLM"):
        load_model(tmp_path)


def test_general_requests_differ_and_are_a_function_of_the_seed() -> None:
    requests = draw_requests(100, seed=4)
    assert len(set(requests)) == 100
    assert requests == draw_requests(100, seed=4)
