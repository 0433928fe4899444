"""Read the shape of a model from a GGUF file, checked before any weight is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.engine.loading.families import find_family
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.gguf.config_fields import config_fields
from shared.engine.loading.gguf.header import GgufHeader
from shared.engine.loading.gguf.parts import read_header
from shared.engine.loading.gguf.special_tokens import end_ids
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest


def read_gguf_config(path: Path, dtype: str | None) -> ModelConfig:
    """The config of a model as it is stored in this file: norms have their offset already.

    `dtype` None: float32 where all matrices are stored so, else bfloat16. Raises NotFound, and InvalidRequest
    with the key, tensor or field that cannot be used.
    """
    header = read_header(path)
    fields = config_fields(header)
    raw = RawConfig(fields, dtype or _stored_dtype(header), end_ids(header))
    try:
        model = find_family(fields["architectures"][0]).read(raw)
    except InvalidRequest as error:
        raise header.refused(f"its metadata, read as a config.json, is wrong: {error.message}") from error
    return replace(model, norm_offset=0.0)


def _stored_dtype(header: GgufHeader) -> str:
    matrices = [tensor for tensor in header.tensors.values() if len(tensor.shape) > 1]
    return "float32" if all(tensor.type.name == "F32" for tensor in matrices) else "bfloat16"
