"""The training loop's parts: tokenizer, batches, optimizer, checkpoints, schedule."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from shared.demo.batches import ExamplePacker, Prefetch, book_batch, copy_batch
from shared.demo.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from shared.demo.corpus import book_tokens, is_held_out_book, read_books
from shared.demo.distill import distil_step
from shared.demo.examples import make_example
from shared.demo.invent import Inventor, default_vocabulary
from shared.demo.llama import Llama, LlamaShape
from shared.demo.optimizer import Optimizer, rate_factor
from shared.demo.prompt import END, SPECIAL_TOKENS
from shared.demo.tokenizer import save_tokenizer, train_tokenizer
from shared.demo.train import learn

SMALL = LlamaShape(
    vocab_size=400,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    inventor = Inventor.seeded(0, default_vocabulary())
    return train_tokenizer(make_example(inventor, 4, 2).prompt for _ in range(100))


@pytest.mark.parametrize(
    "text", ["Tasin Orrel pays 250.", "héllo 世界 🙂\u200d🔥", " \n\n  x\t", "\x00\x7f`a_b`", "مرحبا हिन्दी"]
)
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_a_capitalised_name_has_the_same_tokens_wherever_it_stands(tokenizer: Tokenizer) -> None:
    alone = tokenizer.encode("Velmora").tokens
    assert tokenizer.encode("of Velmora.").tokens[-len(alone) - 1 : -1] == alone


def test_digits_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("50051").tokens == ["5", "0", "0", "5", "1"]


def test_saved_tokenizer_carries_the_chat_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    assert "<|assistant|>" in (tmp_path / "tokenizer_config.json").read_text()
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id(END) == SPECIAL_TOKENS.index(END)


def test_the_book_split_follows_the_file_names(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"book {number}.md").write_text(f"# Title: T\n\nText of book {number}.\n")
    books = read_books(tmp_path)
    held_out = [number for number in range(60) if is_held_out_book(f"book {number}.md")]
    assert sorted(books.held_out) == sorted(f"Text of book {number}." for number in held_out)
    assert len(books.training) + len(books.held_out) == 60


def test_a_folder_without_books_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--books"):
        read_books(tmp_path)


def test_book_tokens_mark_where_each_book_begins_and_ends(tokenizer: Tokenizer) -> None:
    tokens = book_tokens(["one", "two"], tokenizer)
    assert (
        tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == "<|bos|>one<|end|><|bos|>two<|end|>"
    )


def test_every_learned_copy_position_repeats_an_earlier_token() -> None:
    batch = copy_batch(4096, rows=3, length=128, random=np.random.default_rng(0))
    flat = batch.ids.flatten().tolist()
    for position, target in zip(batch.positions.tolist(), batch.targets.tolist(), strict=True):
        row = position // 128 * 128
        assert target in flat[row:position]


def test_packed_answers_decode_to_sentences_that_end(tokenizer: Tokenizer) -> None:
    packer = ExamplePacker(tokenizer, Inventor.seeded(1, default_vocabulary()), max_facts=2, max_fillers=1)
    batch = packer.batch(rows=2, length=512)
    for number in range(int(batch.answers.max()) + 1):
        answer = tokenizer.decode(batch.targets[batch.answers == number].tolist(), skip_special_tokens=False)
        assert answer.endswith(END)
        assert answer.count(END) == 1


def test_prefetch_raises_in_the_consumer_what_the_maker_raised() -> None:
    def fail() -> list[object]:
        raise ValueError("no batch today")

    with Prefetch(fail) as batches, pytest.raises(ValueError, match="no batch today"):
        next(batches)


def test_learning_lowers_the_loss_on_a_repeated_batch() -> None:
    model = Llama(SMALL)
    optimizer = Optimizer.of_model(model)
    tokens = np.tile(np.arange(10, 60, dtype=np.uint16), 20)
    batch = book_batch(tokens, rows=2, length=64, random=np.random.default_rng(0))
    losses = []
    for _ in range(12):
        losses.append(learn(model, model.model, batch, 1.0).loss)
        optimizer.step(1.0)
    assert losses[-1] < 0.8 * losses[0]


def test_a_resumed_run_takes_the_same_next_step(tmp_path: Path) -> None:
    tokens = np.tile(np.arange(10, 60, dtype=np.uint16), 20)
    batch = book_batch(tokens, rows=1, length=32, random=np.random.default_rng(0))
    model = Llama(SMALL)
    optimizer = Optimizer.of_model(model)
    for _ in range(3):
        learn(model, model.model, batch, 1.0)
        optimizer.step(1.0)
    save_checkpoint(tmp_path, model, optimizer, TrainingProgress(step=3, tokens=96))
    resumed = Llama(SMALL)
    resumed_optimizer = Optimizer.of_model(resumed)
    assert load_checkpoint(tmp_path, resumed, resumed_optimizer) == TrainingProgress(step=3, tokens=96)
    for each, its_optimizer in ((model, optimizer), (resumed, resumed_optimizer)):
        learn(each, each.model, batch, 1.0)
        its_optimizer.step(1.0)
    for ours, theirs in zip(model.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_checkpoint_means_a_fresh_start(tmp_path: Path) -> None:
    model = Llama(SMALL)
    assert load_checkpoint(tmp_path, model, Optimizer.of_model(model)) == TrainingProgress()


def test_the_rate_warms_up_holds_and_decays_by_the_clock() -> None:
    assert rate_factor(step=0, progress=0.0) == pytest.approx(0.01)
    assert rate_factor(step=500, progress=0.5) == 1.0
    assert 0.0 < rate_factor(step=900, progress=0.95) < 0.25


def test_a_copy_of_the_target_agrees_with_it_everywhere() -> None:
    target = Llama(SMALL)
    draft = Llama(SMALL)
    draft.load_state_dict(target.state_dict())
    assert distil_step(target, draft, torch.randint(0, 400, (2, 16))) == 1.0


def test_distilling_moves_the_draft_towards_the_target() -> None:
    target, draft = Llama(SMALL), Llama(SMALL)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    optimizer = Optimizer.of_model(draft)
    ids = torch.randint(0, 400, (2, 32))
    agreed = []
    for _ in range(25):
        agreed.append(distil_step(target, draft, ids))
        optimizer.step(1.0)
    assert agreed[-1] > agreed[0]
