"""A real model from a real file: SmolLM2-135M-Instruct in Q4_1, its embedding in Q8_0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from shared.engine import LLM, SamplingParams
from shared.engine.loading.gguf.header import GgufHeader
from shared.engine.loading.gguf.parts import read_header
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer
from tests.support.engine import make_engine, oracle_logits
from tests.support.gguf_files import checkpoint_tensors
from tests.support.smollm2 import smollm2_file
from tests.support.tokenizer_kinds import SAMPLES

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
"""The config as it is published."""
TEXT = "The capital of France is Paris. It's 12,345 steps\n\n  to the river, isn't it?"
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is a penstock?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def file() -> Path:
    return smollm2_file()


@pytest.fixture(scope="module")
def header(file: Path) -> GgufHeader:
    return read_header(file)


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> TextTokenizer:
    return TextTokenizer.load(file)


def transformers_model(header: GgufHeader) -> PreTrainedModel:
    """On the weights that the file stands for, in float32."""
    content = np.fromfile(header.path, dtype=np.uint8)
    held = {
        name: dequantize(
            content[place.start : place.start + place.num_bytes].reshape(place.num_rows, place.row_bytes),
            GGMLQuantizationType[place.type.name],
        ).reshape(place.shape)
        for name, place in header.tensors.items()
    }
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # its buffer is no weight
    model.load_state_dict(checkpoint_tensors(CONFIG, held), strict=False, assign=True)
    model.tie_weights()
    model.train(False)
    return model


def test_logits_of_the_weights_that_it_stands_for_equal_those_of_transformers(
    file: Path, header: GgufHeader, tokenizer: TextTokenizer
) -> None:
    ids = tokenizer.encode_text(TEXT)
    expected = oracle_logits(transformers_model(header), ids)
    engine = make_engine(file, dtype="float32", quantization="dense", max_model_len=256)
    assert expected.std() > 1
    assert (engine.logits(ids) - expected).abs().max() <= 1e-4 * float(expected.abs().max())


def test_texts_become_the_ids_that_the_published_tokenizer_makes_of_them(
    header: GgufHeader, tokenizer: TextTokenizer
) -> None:
    """It is a byte-level one in front of which digits are cut off one by one."""
    tokens = header.strings("tokenizer.ggml.tokens")
    pairs = (merge.partition(" ") for merge in header.strings("tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in pairs]
    theirs = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:17]])
    for sample in (*SAMPLES, TEXT, CHAT, "def f(x):\n    return x  # \u2192 1987\n\n\n"):
        ids = tokenizer.encode_text(sample)
        assert ids == theirs.encode(sample).ids
        assert tokenizer.decode(ids) == theirs.decode(ids)


def test_a_chat_is_written_as_it_was_taught(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode_chat([ChatTurn("user", "What is a penstock?")]) == tokenizer.encode_text(CHAT)


def test_it_answers_a_question_and_ends(file: Path, tokenizer: TextTokenizer) -> None:
    prompt = tokenizer.encode_chat([ChatTurn("user", "What is the capital of France? One word.")])
    (answer,) = LLM(file, kv_blocks=64).generate([prompt], SamplingParams(temperature=0.0, max_tokens=32))
    assert "Paris" in tokenizer.decode(answer.token_ids)
    assert answer.finish_reason == "stop"
