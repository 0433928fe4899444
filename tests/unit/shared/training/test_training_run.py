"""What all training shares: the optimizer, the schedule, checkpoints, batches from a thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from shared.training.checkpoint import FILE_NAME, TrainingProgress, load_checkpoint, save_checkpoint
from shared.training.llama import Llama, LlamaShape
from shared.training.loop import StepFigures, TrainingLoop
from shared.training.optimizer import Optimizer, rate_factor
from shared.training.prefetch import Prefetch

SMALL = LlamaShape(
    vocab_size=400,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
)
IDS = torch.arange(10, 60).repeat(4)[None]  # [1, T]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def learn(model: Llama, optimizer: Optimizer, ids: Tensor = IDS) -> float:
    """One step on the next tokens; the loss before it."""
    loss = functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    optimizer.step(1.0)
    return loss.item()


def test_learning_lowers_the_loss_on_a_repeated_batch() -> None:
    model = Llama(SMALL)
    optimizer = Optimizer.of_model(model)
    losses = [learn(model, optimizer) for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]


def test_a_resumed_run_takes_the_same_next_step(tmp_path: Path) -> None:
    model = Llama(SMALL)
    optimizer = Optimizer.of_model(model)
    for _ in range(3):
        learn(model, optimizer)
    save_checkpoint(tmp_path, model, optimizer, TrainingProgress(step=3, tokens=96))
    resumed = Llama(SMALL)
    resumed_optimizer = Optimizer.of_model(resumed)
    assert load_checkpoint(tmp_path, resumed, resumed_optimizer) == TrainingProgress(step=3, tokens=96)
    assert learn(resumed, resumed_optimizer) == learn(model, optimizer)
    for ours, theirs in zip(model.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_checkpoint_means_a_fresh_start(tmp_path: Path) -> None:
    model = Llama(SMALL)
    assert load_checkpoint(tmp_path, model, Optimizer.of_model(model)) == TrainingProgress()


def test_a_checkpoint_that_says_more_than_is_asked_is_gone_on_from(tmp_path: Path) -> None:
    model = Llama(SMALL)
    optimizer = Optimizer.of_model(model)
    save_checkpoint(tmp_path, model, optimizer, TrainingProgress(step=7))
    said = {"step": 7, "elapsed_s": 2.5, "tokens": 64, "stage": 1}
    save_file(load_file(tmp_path / FILE_NAME), tmp_path / FILE_NAME, {"progress": json.dumps(said)})
    assert load_checkpoint(tmp_path, model, optimizer) == TrainingProgress(7, 2.5, 64)


def test_a_run_ends_with_its_budget_and_is_saved(tmp_path: Path) -> None:
    saved: list[int] = []
    progress = TrainingProgress(step=4)
    loop = TrainingLoop(progress, budget_s=1e-9, save=lambda: saved.append(progress.step))
    loop.run("test", [1, 2, 3], lambda batch: StepFigures(10 * batch, {"loss": 1.0}))
    assert (progress.step, progress.tokens, saved) == (5, 10, [5])


def test_the_rate_warms_up_holds_and_decays_by_the_clock() -> None:
    assert rate_factor(step=0, progress=0.0) == pytest.approx(0.01)
    assert rate_factor(step=500, progress=0.5) == 1.0
    assert 0.0 < rate_factor(step=900, progress=0.95) < 0.25


def test_prefetch_raises_in_the_consumer_what_the_maker_raised() -> None:
    def fail() -> list[object]:
        raise ValueError("no batch today")

    with Prefetch(fail) as batches, pytest.raises(ValueError, match="no batch today"):
        next(batches)
