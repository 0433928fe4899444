"""The demo models as shipped: they load everywhere, fit in the repository, and do what their card says."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.demo.invent import default_vocabulary
from shared.demo.prompt import BOS, CHAT_TEMPLATE, END, chat_text
from shared.text.retrieval_prompt import CONTEXT_FORM, retrieval_prompt
from shared.training.llama import Llama
from shared.training.llama_files import load_model
from tests.support.pair_scores import MODELS, agreement, exact_answers, example_ids, held_out_examples

MAX_BYTES = 40_000_000
ROLES = ("target", "draft")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def target() -> Llama:
    return load_model(MODELS / "target")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))


def test_both_models_together_stay_within_their_size() -> None:
    assert sum((MODELS / role / "model.safetensors").stat().st_size for role in ROLES) <= MAX_BYTES


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_target_and_draft_share_one_tokenizer(name: str) -> None:
    first, second = ((MODELS / role / name).read_bytes() for role in ROLES)
    assert first == second


@pytest.mark.parametrize("role", ROLES)
def test_shipped_model_gives_the_same_logits_in_transformers(role: str) -> None:
    ours = load_model(MODELS / role)
    theirs = AutoModelForCausalLM.from_pretrained(MODELS / role, dtype=torch.float32)
    ids = torch.randint(6, 4096, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-3, atol=1e-3)


def test_transformers_renders_the_documented_chat_format() -> None:
    theirs = AutoTokenizer.from_pretrained(MODELS / "target")
    user = retrieval_prompt(["A block holds 16 tokens."], "How many tokens does a block hold?", CONTEXT_FORM)
    rendered = theirs.apply_chat_template(
        [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == chat_text(user)
    assert theirs.chat_template == CHAT_TEMPLATE
    assert (theirs.bos_token, theirs.eos_token) == (BOS, END)


def test_special_tokens_are_single_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(chat_text("x", "y"), add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "yx"


def test_target_answers_most_held_out_facts_exactly(target: Llama, tokenizer: Tokenizer) -> None:
    examples = held_out_examples(default_vocabulary(), count=60, seed=1)
    assert exact_answers(target, tokenizer, examples) >= 0.7


@pytest.mark.thorough
def test_draft_agrees_with_the_target_on_held_out_questions(target: Llama, tokenizer: Tokenizer) -> None:
    examples = held_out_examples(default_vocabulary(), count=20, seed=2)
    texts = []
    for example in examples:
        prompt, answer = example_ids(example, tokenizer)
        texts.append(torch.tensor([*prompt, *answer]))
    assert agreement(target, load_model(MODELS / "draft"), texts) > 0.3


def test_the_model_card_gives_the_licence_and_the_scores() -> None:
    card = (Path(MODELS) / "README.md").read_text(encoding="utf-8")
    for word in ("Licence", "exact answers", "bits per byte", "agreement", "step"):
        assert word in card
