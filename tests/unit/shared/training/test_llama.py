"""The training model: the same arithmetic as transformers' Llama, and its files."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from shared.training.llama import Llama, LlamaShape
from shared.training.llama_files import load_model, write_model

SMALL = LlamaShape(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def random_model() -> Llama:
    model = Llama(SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter).mul(0.2).to(torch.bfloat16))
    return model


def test_exported_model_gives_the_same_logits_in_transformers(tmp_path: Path) -> None:
    model = random_model()
    write_model(model, tmp_path, 1, [2])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, SMALL.vocab_size, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_saved_model_loads_with_the_same_logits(tmp_path: Path) -> None:
    model = random_model()
    write_model(model, tmp_path, 1, [2])
    ids = torch.randint(0, SMALL.vocab_size, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path)(ids), model(ids))


def test_a_position_does_not_see_what_follows_it() -> None:
    model = random_model()
    ids = torch.randint(0, SMALL.vocab_size, (1, 12))
    with torch.no_grad():
        whole, start = model(ids), model(ids[:, :7])
    torch.testing.assert_close(whole[:, :7], start)
