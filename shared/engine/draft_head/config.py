"""Read config.json of a draft head, and refuse a head of another target by a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest, NotFound

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
MODEL_TYPE = "penstock_draft_head"
NUM_TAPS = 3
MAX_CONFIG_BYTES = 1 << 20
"""The longest config.json of a draft head."""
MAX_WIDTH = 1 << 16
"""The largest hidden and intermediate size of a draft head."""
MAX_BLOCKS = 8
"""The most blocks of a draft head."""
MAX_EPS = 1.0
"""The limit below which rms_norm_eps of a draft head has to be."""


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """`tap_layers`: after which decoder layers of the target, the first is 0, its hidden states are read."""

    target_digest: str  # of the target's checkpoint; "" where the head does not say
    target_vocab_size: int
    target_hidden_size: int
    hidden_size: int
    intermediate_size: int
    num_blocks: int
    tap_layers: tuple[int, ...]
    draft_vocab_size: int
    rms_norm_eps: float

    @property
    def tap_width(self) -> int:
        """Return how many numbers are read of a row."""
        return len(self.tap_layers) * self.target_hidden_size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, by its name."""
        d, inner, target = self.hidden_size, self.intermediate_size, self.target_hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "taps_norm.weight": (self.tap_width,),
            "fuse.weight": (d, self.tap_width),
            "state_norm.weight": (d,),
            "embed_norm.weight": (target,),
            "mix_state.weight": (d, d),
            "mix_embed.weight": (d, target),
            "out_norm.weight": (d,),
            "head.weight": (self.draft_vocab_size, d),
            "ids": (self.draft_vocab_size,),
            "confidence.weight": (d,),
            "confidence.bias": (1,),
        }
        for block in range(self.num_blocks):
            shapes |= {
                f"blocks.{block}.norm.weight": (d,),
                f"blocks.{block}.gate_up.weight": (2 * inner, d),
                f"blocks.{block}.down.weight": (d, inner),
            }
        return shapes


def load_draft_head_config(folder: Path, target: ModelConfig) -> DraftHeadConfig:
    """Raises NotFound for a missing directory or file, InvalidRequest for what is no head of `target`."""
    fields = _read_fields(folder)
    if fields.get("model_type") != MODEL_TYPE:
        raise _wrong("model_type", fields.get("model_type"), f"{MODEL_TYPE!r}: give a draft head's directory")
    of = fields.get("target")
    if not isinstance(of, dict):
        raise _wrong("target", of, "an object that describes the target")
    digest = of.get("digest", "")
    if not isinstance(digest, str):
        raise _wrong("target.digest", digest, "the digest of the target's checkpoint or an empty string")
    return DraftHeadConfig(
        digest,
        _same(of, "vocab_size", target.vocab_size),
        _same(of, "hidden_size", target.hidden_size),
        _integer(fields, "hidden_size", MAX_WIDTH),
        _integer(fields, "intermediate_size", MAX_WIDTH),
        _integer(fields, "num_blocks", MAX_BLOCKS),
        _tap_layers(fields, len(target.layers)),
        _integer(fields, "draft_vocab_size", target.vocab_size),
        _eps(fields),
    )


def _read_fields(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise NotFound(f"{str(folder)!r} has no {CONFIG_FILE}; give the directory of a draft head")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise InvalidRequest(f"{CONFIG_FILE} of the draft head is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidRequest(f"{CONFIG_FILE} of the draft head is not valid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{CONFIG_FILE} of the draft head is not a JSON object")
    return fields


def _wrong(name: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"draft head: {name} must be {wanted}, not {shown(value)}")


def _integer(fields: Mapping[str, Any], name: str, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise _wrong(name, value, f"an integer from 1 to {most}")
    return value


def _same(of: Mapping[str, Any], name: str, own: int) -> int:
    value = of.get(name)
    if type(value) is not int or value != own:
        raise InvalidRequest(
            f"the draft head is for a target whose {name} is {shown(value)}, this one's is {own}; "
            "train a head for this model"
        )
    return value


def _tap_layers(fields: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    value = fields.get("tap_layers")
    wanted = f"{NUM_TAPS} ascending layers from 0 to {num_layers - 1}"
    if not isinstance(value, list) or len(value) != NUM_TAPS:
        raise _wrong("tap_layers", value, wanted)
    if any(type(layer) is not int or not 0 <= layer < num_layers for layer in value):
        raise _wrong("tap_layers", value, wanted)
    if sorted(set(value)) != value:
        raise _wrong("tap_layers", value, wanted)
    return tuple(value)


def _eps(fields: Mapping[str, Any]) -> float:
    value = fields.get("rms_norm_eps")
    if not isinstance(value, float) or not 0 < value < MAX_EPS:
        raise _wrong("rms_norm_eps", value, f"a number above 0 and below {MAX_EPS}")
    return value
