"""Read adapter_config.json of a LoRA adapter, checked before its weights are looked at.

The fields are those of PEFT's LoraConfig. What would change more of a model than low-rank products beside its
linear maps is refused by the field's name, unknown fields that are set included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.engine.loading.families.raw_config import MAX_NUMBER, MIN_NUMBER, shown
from shared.errors import InvalidRequest, NotFound

CONFIG_FILE = "adapter_config.json"
MAX_ADAPTER_CONFIG_BYTES = 1 << 20
"""The longest adapter_config.json."""

_READ = (
    "peft_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "base_model_name_or_path",
    "init_lora_weights",
)
_OF_TRAINING = (  # says nothing of what is computed
    "task_type",
    "auto_mapping",
    "peft_version",
    "revision",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "eva_config",
    "qalora_group_size",  # of `use_qalora`, which is refused
    "runtime_config",
    # The weights say which layers and modules there are.
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
)
_NOTHING: tuple[object, ...] = (None, False, "none", "", [], {})
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Beginnings that leave the base model's own weights as they are."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`targets`: names of modules, each the end of a path; None: a pattern chose them."""

    rank: int
    alpha: float
    rank_stabilized: bool
    ranks: frozenset[int]  # that some modules have instead
    alphas: Mapping[str, float]  # by the end of a module's path, or ^ and the whole of it
    targets: tuple[str, ...] | None
    base_name: str  # of the model that it was trained over, "" where that is not stated

    def scale(self, module: str, rank: int) -> float:
        """alpha / r, or with rank stabilization (Kalajdzievski 2023, rsLoRA) alpha / sqrt(r)."""
        alpha = next((each for name, each in self.alphas.items() if _names(name, module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)

    def is_target(self, module: str) -> bool:
        return self.targets is None or any(_names(target, module) for target in self.targets)

    def unmet_targets(self, modules: list[str]) -> list[str]:
        """Return those targets that none of `modules` is."""
        return [each for each in self.targets or () if not any(_names(each, module) for module in modules)]


def _names(name: str, module: str) -> bool:
    return module == name[1:] if name.startswith("^") else module == name or module.endswith(f".{name}")


def load_adapter_config(folder: Path) -> AdapterConfig:
    """Raises NotFound for a missing directory or file, InvalidRequest for what cannot be computed."""
    fields = _read_fields(folder)
    if fields.get("peft_type") != "LORA":
        raise _refused("peft_type", fields.get("peft_type"), "only LORA is read")
    for name, value in fields.items():
        if name not in _READ and name not in _OF_TRAINING and value not in _NOTHING:
            raise _refused(name, value, "of LoRA adapters only the low-rank products are computed")
    init = fields.get("init_lora_weights")
    if init not in _INITS:
        raise _refused(
            "init_lora_weights",
            init,
            "it changes the base model: save the adapter with path_initial_model_for_weight_conversion",
        )
    return AdapterConfig(
        rank=_rank("r", fields.get("r", 8)),
        alpha=_number("lora_alpha", fields.get("lora_alpha", 8)),
        rank_stabilized=_flag("use_rslora", fields.get("use_rslora")),
        ranks=frozenset(_rank("rank_pattern", rank) for rank in _patterns(fields, "rank_pattern").values()),
        alphas={
            _plain(pattern): _number("alpha_pattern", alpha)
            for pattern, alpha in _patterns(fields, "alpha_pattern").items()
        },
        targets=_targets(fields.get("target_modules")),
        base_name=str(fields.get("base_model_name_or_path") or ""),
    )


def _read_fields(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise NotFound(f"{str(folder)!r} has no {CONFIG_FILE}; give a directory that PEFT has saved")
    if path.stat().st_size > MAX_ADAPTER_CONFIG_BYTES:
        raise InvalidRequest(f"{CONFIG_FILE} is larger than {MAX_ADAPTER_CONFIG_BYTES} bytes; save it again")
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidRequest(f"{CONFIG_FILE} is not valid JSON ({error}); save the adapter again") from error
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{CONFIG_FILE} is not a JSON object; save the adapter again")
    return fields


def _refused(name: str, value: object, why: str) -> InvalidRequest:
    return InvalidRequest(f"{CONFIG_FILE}: {name} is {shown(value)}, which is not supported; {why}")


def _rank(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"{CONFIG_FILE}: {name} must be an integer of at least 1, not {shown(value)}")
    return value


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not MIN_NUMBER <= value <= MAX_NUMBER:  # type: ignore[operator]  # it is a number
        raise InvalidRequest(
            f"{CONFIG_FILE}: {name} must be a positive number from {MIN_NUMBER} to {MAX_NUMBER}, "
            f"not {shown(value)}"
        )
    return float(value)  # type: ignore[arg-type]


def _flag(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{CONFIG_FILE}: {name} must be true or false, not {shown(value)}")
    return bool(value)


def _patterns(fields: Mapping[str, Any], name: str) -> Mapping[str, object]:
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{CONFIG_FILE}: {name} must be an object, not {shown(value)}")
    return value


def _plain(pattern: str) -> str:
    r"""A key of alpha_pattern without the backslashes of its dots.

    PEFT takes it for a regular expression. One from a file is not run here, for some take years.
    """
    plain = pattern.replace("\\.", ".").removesuffix("$")
    if not plain.removeprefix("^").replace("_", "").replace(".", "").replace("-", "").isalnum():
        raise _refused("alpha_pattern", pattern, "only names of modules are read, whole or their last parts")
    return plain


def _targets(value: object) -> tuple[str, ...] | None:
    """A pattern, "all-linear" among them, is not run here: the weights say which modules it chose."""
    if isinstance(value, str) or value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRequest(f"{CONFIG_FILE}: target_modules must be names, not {shown(value)}")
    return tuple(value)
