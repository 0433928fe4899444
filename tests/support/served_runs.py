"""What the model of a served shape computes: prompts and decode steps in every number of rows, poisoned."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shared.engine import Engine
from shared.engine.batch import Batch, Model, Span
from shared.engine.memory.kv_pool import BLOCK_TOKENS, KvPool
from shared.engine.native.library import has_matrix_unit
from shared.engine.native.model import NativeModel
from tests.support.engine import make_engine, tables_in
from tests.support.served_shapes import ROW_COUNTS

LONGEST = max(ROW_COUNTS)
PROMPT_BLOCKS = LONGEST // BLOCK_TOKENS
STREAMS = max(count for count in ROW_COUNTS if count < LONGEST)
STREAM_TOKENS = BLOCK_TOKENS + 1
GOLDEN_FILE = Path(__file__).with_name("golden_logits.json")
WRITE_GOLDEN = "PENSTOCK_WRITE_GOLDEN"
"""Set to anything, it has tests write what the kernels compute instead of comparing with it."""

ERRORS = {"float32": 1e-5, "bfloat16": 0.02, "int8": 0.04, "int4": 0.4, "int8 KV": 0.04}
"""The error that a row may have, as a part of what its logits vary by: by rounding, never as by another
row."""
STORED_AS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "int8 KV": {"dtype": "bfloat16", "kv_dtype": "int8"},
}


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A model in the middle of a pool, and the ids that it is given."""

    model: Model
    pool: KvPool
    token_ids: Sequence[int]

    @classmethod
    def of(cls, engine: Engine, vocab: int) -> ServedRun:
        return cls(engine._model, engine.kv_pool, cls.token_ids_of(vocab))

    @staticmethod
    def token_ids_of(vocab: int) -> list[int]:
        return [(7919 * place + 13) % vocab for place in range(LONGEST)]

    def prompt(self, num_rows: int) -> Tensor:
        """float32 [num_rows, vocab]: of the first `num_rows` ids as one prompt."""
        span = Span(0, num_rows, tables_in(self.pool, range(PROMPT_BLOCKS)))
        return self._forward(Batch(self.token_ids[:num_rows], [span], range(num_rows)))

    def row_alone(self, position: int) -> Tensor:
        """float32 [vocab]: of one id behind those whose KV the last prompt left."""
        span = Span(position, 1, tables_in(self.pool, range(PROMPT_BLOCKS)))
        return self._forward(Batch([self.token_ids[position]], [span], [0]))[0]

    def streams_as_prompts(self) -> Tensor:
        """float32 [STREAMS, vocab]: the last row of each stream, each of them a prompt by itself."""
        return torch.cat([self._stream_prompt(stream) for stream in range(STREAMS)])

    def decode(self, num_rows: int) -> Tensor:
        """float32 [num_rows, vocab]: a step of the first `num_rows` streams."""
        spans = [Span(STREAM_TOKENS - 1, 1, self._stream_table(stream)) for stream in range(num_rows)]
        ids = [self._stream_ids(stream)[-1] for stream in range(num_rows)]
        return self._forward(Batch(ids, spans, range(num_rows)))

    def _stream_prompt(self, stream: int) -> Tensor:
        span = Span(0, STREAM_TOKENS, self._stream_table(stream))
        return self._forward(Batch(self._stream_ids(stream), [span], [STREAM_TOKENS - 1]))

    def _stream_ids(self, stream: int) -> Sequence[int]:
        return self.token_ids[stream : stream + STREAM_TOKENS]

    def _stream_table(self, stream: int) -> list[list[int]]:
        first = PROMPT_BLOCKS + 2 * stream
        return tables_in(self.pool, [first, first + 1])

    def _forward(self, batch: Batch) -> Tensor:
        if isinstance(self.model, NativeModel):
            self.model._kernels.penstock_poison(self.model._handle)
            self.model._logits.fill_(torch.nan)  # the same rows stood there after the last step
        return self.model.forward(batch).clone()


def served_engine(folder: Path, **fields: object) -> Engine:
    """An engine with room for the prompt and the streams of a `ServedRun`."""
    return make_engine(folder, kv_blocks=PROMPT_BLOCKS + 2 * STREAMS, max_model_len=LONGEST, **fields)


def assert_every_number_of_rows_is_the_same(run: ServedRun) -> Tensor:
    """Compare prompts and decode steps bit for bit; returns float32 [LONGEST, vocab] of the longest one."""
    alone = run.streams_as_prompts()
    for num_rows in (count for count in ROW_COUNTS if count <= STREAMS):
        assert torch.equal(run.decode(num_rows), alone[:num_rows]), f"a step of {num_rows} streams"
    # Ascending: what is poisoned before each is as large as the largest step so far.
    prompts = [run.prompt(num_rows) for num_rows in ROW_COUNTS]
    together = prompts[-1]
    for prompt in prompts:
        assert torch.equal(prompt, together[: len(prompt)]), f"a prompt of {len(prompt)} rows"
    for position in (0, 11, 12, 63, LONGEST - 1):
        assert torch.equal(run.row_alone(position), together[position]), f"row {position} alone"
    return together


def row_errors(logits: Tensor, exact: Tensor) -> Tensor:
    """float32 [T]: how far each row is off, as a part of what its logits vary by."""
    return (logits - exact).square().mean(-1).sqrt() / exact.std(-1)


def keeps_golden(name: str) -> bool:
    """Whether bits of this name were decided on, or are to be written now."""
    return WRITE_GOLDEN in os.environ or name in json.loads(GOLDEN_FILE.read_text())


def assert_golden(name: str, logits: Tensor) -> None:
    """That the bits of `logits` are those that were decided on: see tests/shapes/README.md."""
    known: dict[str, str] = json.loads(GOLDEN_FILE.read_text())
    digest = hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()[:16]
    if has_matrix_unit() and known.get(name) != digest:
        name += ", matrix unit"
    if WRITE_GOLDEN in os.environ:
        GOLDEN_FILE.write_text(json.dumps(dict(sorted({**known, name: digest}.items())), indent=2) + "\n")
        return
    assert known.get(name) == digest, (
        f"the kernels compute other bits for {name} than before: {digest}; where that is meant, run the test "
        f"again with {WRITE_GOLDEN}=1 and commit {GOLDEN_FILE.name}"
    )
