"""A cross-encoder: question and passage read together, one score (Nogueira and Cho 2019, arXiv:1901.04085).

From any Hugging Face directory of a BERT, RoBERTa or XLM-R sequence classification model with config.json,
model.safetensors and tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from shared.engine.native.encoder import Arithmetic
from shared.errors import InvalidRequest, NotFound, TooLarge
from shared.process.file_pages import give_back_pages
from shared.retrieval.encoders.bert import ROBERTA_TYPES, read_encoder
from shared.retrieval.encoders.rerank import ScoredTexts
from shared.retrieval.encoders.text_encoder import TextEncoder

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
TOKENIZER_NAME = "tokenizer.json"
ARCHITECTURE = "ForSequenceClassification"
MAX_PAIR_TOKENS = 512
"""The most tokens of question and passage together; what is longer loses the end of the longer one."""
MAX_CONFIG_BYTES = 1 << 20
"""The longest config.json of a cross-encoder."""
MAX_TOKENIZER_BYTES = 64 << 20
"""Its longest tokenizer.json."""
MAX_WEIGHTS_BYTES = 4 << 30
"""Its longest model.safetensors."""


@dataclass(frozen=True, slots=True)
class _Head:
    """Scores from first tokens' states: tanh of a dense layer, then a linear map."""

    dense: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]

    def scores(self, first: Tensor) -> Tensor:
        """[pairs, hidden] -> [pairs]: the one label's logit, of two the second's beyond the first's."""
        logits = functional.linear(torch.tanh(functional.linear(first, *self.dense)), *self.out)
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


class CrossEncoder:
    """A Reranker. One thread at a time."""

    def __init__(self, name: str, encoder: TextEncoder, head: _Head, tokenizer: Tokenizer) -> None:
        self.name = name
        self._encoder = encoder
        self._head = head
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(min(MAX_PAIR_TOKENS, encoder.max_tokens))

    @classmethod
    def load(cls, folder: Path, *, arithmetic: Arithmetic = "bfloat16", threads: int = 1) -> CrossEncoder:
        """Raises NotFound for a file that is not there, TooLarge or InvalidRequest for one that is no such
        model's."""
        try:
            config: Any = json.loads(_file(folder, CONFIG_NAME, MAX_CONFIG_BYTES).read_bytes())
            weights = load_file(str(_file(folder, WEIGHTS_NAME, MAX_WEIGHTS_BYTES)))
        except (ValueError, RecursionError, SafetensorError) as error:
            raise InvalidRequest(f"{folder} holds no model that can be read: {error}") from error
        tokenizer_file = _file(folder, TOKENIZER_NAME, MAX_TOKENIZER_BYTES)
        names = config.get("architectures") if isinstance(config, dict) else None
        if not isinstance(names, list) or not any(str(name).endswith(ARCHITECTURE) for name in names):
            raise InvalidRequest(f"{folder} is no sequence classification model; name one that is")
        encoder = TextEncoder(read_encoder(config, weights), arithmetic, threads=threads)
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # tokenizers raises nothing more exact
            raise InvalidRequest(f"{tokenizer_file} is no tokenizer: {error}") from error
        reranker = cls(folder.name, encoder, _read_head(config, weights, encoder.hidden), tokenizer)
        give_back_pages(folder / WEIGHTS_NAME)
        return reranker

    def weight(self, question: str) -> float | None:  # noqa: ARG002 - a Reranker is told
        """Return that its scores count alone: it was taught nothing else."""
        return None

    def score_texts(self, question: str, texts: Sequence[str], owner: str = "") -> ScoredTexts:  # noqa: ARG002 - it keeps nothing
        pairs = self._tokenizer.encode_batch([(question, text) for text in texts])
        ids, kinds = [pair.ids for pair in pairs], [pair.type_ids for pair in pairs]
        first = torch.from_numpy(self._encoder.encode(ids, "first", kinds=kinds))
        with torch.inference_mode():
            scores: list[float] = self._head.scores(first).tolist()
        return ScoredTexts(scores, list(map(len, ids)), [bool(pair.overflowing) for pair in pairs])


def _file(folder: Path, name: str, most_bytes: int) -> Path:
    path = folder / name
    if not path.is_file():
        raise NotFound(f"{folder} has no {name}; name the folder of a Hugging Face cross-encoder")
    if path.stat().st_size > most_bytes:
        raise TooLarge(f"{path} is over the limit of {most_bytes} bytes; name a smaller model")
    return path


def _read_head(config: Mapping[str, Any], weights: Mapping[str, Tensor], hidden: int) -> _Head:
    """Raises InvalidRequest where it is missing or has other shapes."""
    roberta = config.get("model_type") in ROBERTA_TYPES
    dense, out = (
        ("classifier.dense", "classifier.out_proj") if roberta else ("bert.pooler.dense", "classifier")
    )
    found: list[tuple[Tensor, Tensor]] = []
    for name in (dense, out):
        weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        labels = (hidden,) if name == dense else (1, 2)
        if (
            weight is None
            or bias is None
            or weight.ndim != 2
            or weight.shape[0] not in labels
            or weight.shape[1] != hidden
            or bias.shape != weight.shape[:1]
        ):
            raise InvalidRequest(f"{name} is missing or has no {hidden} inputs and {labels} outputs")
        found.append((weight.float(), bias.float()))
    return _Head(found[0], found[1])
