"""A classifier of questions, as a file: a logistic head on the vector that an embedder makes of one, or on
its words.

The file is a safetensors file of one tensor `weight`, float32 [dimensions], with `bias` and `embedder` as
metadata. It is read and written here without the library, which a gateway needs for nothing else.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.files.atomic_write import write_file
from shared.files.bounded_file import read_bounded
from shared.files.word_features import WORD_FEATURES, WORD_PLACES, word_features

MAX_HEAD_BYTES = 1 << 20
"""The longest file of a classifier: one has up to 66 kilobytes."""
MAX_EMBEDDER_CHARS = 256
"""The longest name of an embedder in it."""
_LENGTH_BYTES = 8
_FLOAT_BYTES = 4
_TENSOR = "weight"


@dataclass(frozen=True, slots=True)
class DifficultyHead:
    """Estimates from the vector of a question, by `embedder`, how likely it is that the question is hard.

    WORD_FEATURES as `embedder`: from the words of the question, for which nobody is asked.
    """

    embedder: str
    weights: array[float]
    bias: float

    @property
    def reads_words(self) -> bool:
        return self.embedder == WORD_FEATURES

    def probability(self, vector: Sequence[float]) -> float:
        """Return the estimate, from 0 to 1. `vector` has as many dimensions as there are weights."""
        return _logistic(self.bias + sum(map(mul, self.weights, vector)))

    def probability_of(self, question: str) -> float:
        """Return the estimate from the words of a question; only where the head `reads_words`."""
        found = word_features(question)
        return _logistic(self.bias + sum(self.weights[place] * value for place, value in found.items()))


def _logistic(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0 else 1.0 - 1.0 / (1.0 + math.exp(logit))


def write_difficulty_head(path: Path, head: DifficultyHead) -> None:
    """Put the file there in one step. Raises OSError."""
    data = _little_endian(head.weights).tobytes()
    header = {
        "__metadata__": {"bias": repr(head.bias), "embedder": head.embedder},
        _TENSOR: {"dtype": "F32", "shape": [len(head.weights)], "data_offsets": [0, len(data)]},
    }
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % _LENGTH_BYTES)
    write_file(path, len(said).to_bytes(_LENGTH_BYTES, "little") + said + data)


def read_difficulty_head(path: Path) -> DifficultyHead:
    """Raises InvalidRequest for a file that is none of `penstock router train`."""
    advice = ": `penstock router train` makes one"
    data = read_bounded(path, MAX_HEAD_BYTES, f"the classifier {path}", advice)
    try:
        return _parsed(data)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path} is no classifier of questions: make one with `penstock router train`"
        ) from error


def _parsed(data: bytes) -> DifficultyHead:
    """Raises ValueError, KeyError or TypeError for what is none."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    header: Any = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    told, tensor = header["__metadata__"], header[_TENSOR]
    start, end = tensor["data_offsets"]
    (dimensions,) = tensor["shape"]
    values = data[_LENGTH_BYTES + length :]
    embedder, bias = told["embedder"], float(told["bias"])
    if tensor["dtype"] != "F32" or (start, end) != (0, dimensions * _FLOAT_BYTES) or len(values) != end:
        raise ValueError("the tensor is not what it says")
    weights = _little_endian(array("f", values))
    if not isinstance(embedder, str) or not 1 <= len(embedder) <= MAX_EMBEDDER_CHARS or not dimensions:
        raise ValueError("no embedder is named")
    if embedder == WORD_FEATURES and dimensions != WORD_PLACES:
        raise ValueError("it has weights for other words")
    if not all(map(math.isfinite, (bias, *weights))):
        raise ValueError("a weight is not finite")
    return DifficultyHead(embedder, weights, bias)


def _little_endian(values: array[float]) -> array[float]:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values
