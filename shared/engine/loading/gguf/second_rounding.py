"""Weights of four bits or fewer that are rounded to four once more, which costs far more than once."""

from __future__ import annotations

from pathlib import Path

import structlog

from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.parts import read_header

log = structlog.get_logger()

FEW_BITS = ("Q2_", "Q3_", "Q4_", "IQ4_", "MXFP4")
"""The beginnings of the names of such types."""


def warn_of_second_rounding(model: str | Path, quantization: str) -> None:
    """Say once what to do instead, where `model` is a file of such weights and int4 is asked for.

    Raises NotFound and InvalidRequest as `read_header` does. SmolLM2-135M's Q4_1 has a fifth more perplexity
    in int4. The codes of other packed checkpoints stay as they are, whatever is asked for.
    """
    gguf = find_gguf(model) if quantization == "int4" else None
    if gguf is None:
        return
    found = {place.type.name for place in read_header(gguf).tensors.values()}
    stored = sorted(name for name in found if name.startswith(FEW_BITS))
    if stored:
        log.warning(
            "quantized_twice",
            file=gguf.name,
            stored=stored,
            help="quantization int4 rounds these weights once more and loses far more than the file did: "
            "on a CPU none computes from the file's own blocks; on a GPU take int8",
        )
