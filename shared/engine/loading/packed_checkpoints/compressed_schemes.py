"""Read `quantization_config` of a compressed-tensors checkpoint: which modules are packed, and how
each
is.

`config_groups` has a scheme per group of modules, `targets` and `ignore` name modules: exactly, by their
class (`Linear`: all that there are here), or by a regular expression after `re:` that must match from the
name's beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.packed_checkpoints.packed_format import check_known, require
from shared.errors import InvalidRequest

Stored = Literal["plain", "words", "mxfp4"]
Wanted = Callable[[str, bool, str], None]
"""(name of a field, whether it is right, what it must be)"""

FORMATS: dict[str, Stored] = {
    "naive-quantized": "plain",
    "int-quantized": "plain",
    "float-quantized": "plain",
    "pack-quantized": "words",
    "mxfp4-pack-quantized": "mxfp4",
}
"""The forms in which codes are stored: a weight of their own dtype, int32 words, pairs of 4-bit floats."""
STRATEGIES = ("tensor", "channel", "group", "block")
MAX_RULES = 1 << 16
"""The most rules that say how modules are packed."""
MAX_PATTERN_CHARS = 500
"""The longest pattern of such a rule."""
MAX_REPEATS = 6
"""The most repeats in one pattern. A name of 60 characters is matched in milliseconds with them, in hours
with twice as many."""

_NO_MATCH = 3
_STATUSES = (None, "compressed", "frozen")
_FIELDS = (
    *("quant_method", "format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status"),
    *("global_compression_ratio", "sparsity_config", "transform_config", "moe_sparsity_config", "version"),
)
_GROUP_FIELDS = ("targets", "weights", "input_activations", "output_activations", "format")
_WEIGHT_FIELDS = (
    *("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder"),
    *("scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
)


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """The way in which one linear's weights are stored."""

    stored: Stored
    bits: int
    is_float: bool
    symmetric: bool
    strategy: Literal["tensor", "channel", "group", "block"]
    group_size: int  # of strategy "group"
    block: tuple[int, int]  # of strategy "block": (out, in)
    reordered: bool  # weight_g_idx must be there


@dataclass(frozen=True, slots=True)
class NameRules:
    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def match(self, module: str) -> bool:
        """Return whether they name a linear."""
        return self.distance(module) < _NO_MATCH

    def distance(self, module: str) -> int:
        """0 where a linear is named exactly, 1 by a pattern, 2 by its class, else `_NO_MATCH`."""
        if module in self.names:
            return 0
        if any(each.match(module) for each in self.patterns):
            return 1
        return 2 if "Linear" in self.names else _NO_MATCH


@dataclass(frozen=True, slots=True)
class SchemeGroup:
    targets: NameRules
    weights: WeightScheme | None
    static_rows: bool  # scales of activations are in the checkpoint


def read_groups(fields: Mapping[str, Any]) -> tuple[SchemeGroup, ...]:
    """Raises InvalidRequest, naming the field that cannot be read."""
    check_known(fields, _FIELDS)
    require(fields, "quantization_status", fields.get("quantization_status") in _STATUSES, "compressed")
    for name in ("sparsity_config", "transform_config", "moe_sparsity_config"):
        inner = fields.get(name) or {}
        empty = isinstance(inner, dict) and (
            not inner or (name, inner.get("format")) == ("sparsity_config", "dense")
        )
        require(fields, name, empty, "null or empty: sparse and rotated weights are not read")
    groups = fields.get("config_groups")
    require(
        fields,
        "config_groups",
        isinstance(groups, dict) and bool(groups),
        "an object with a scheme per group",
    )
    assert isinstance(groups, dict)
    return tuple(_group(name, group, fields) for name, group in groups.items())


def name_rules(fields: Mapping[str, Any], field: str, where: str) -> NameRules:
    listed = fields.get(field) or []
    if (
        not isinstance(listed, list)
        or len(listed) > MAX_RULES
        or not all(isinstance(each, str) for each in listed)
    ):
        raise InvalidRequest(
            f"{where}: {field} must be a list of at most {MAX_RULES} names, not {shown(listed)}"
        )
    patterns = [each for each in listed if each.startswith("re:")]
    return NameRules(
        frozenset(each for each in listed if not each.startswith("re:")),
        tuple(_compiled(each.removeprefix("re:"), f"{where}: {field}") for each in patterns),
    )


def _group(name: str, group: Any, fields: Mapping[str, Any]) -> SchemeGroup:
    where = f"quantization_config: config_groups.{shown(name)}"
    if not isinstance(group, dict):
        raise InvalidRequest(f"{where} is {shown(group)}; it must be an object with targets and weights")
    check_known(group, _GROUP_FIELDS, where)
    if group.get("output_activations") is not None:
        raise InvalidRequest(f"{where}: output_activations is not supported; it must be null")
    rows = group.get("input_activations") or {}
    static_rows = isinstance(rows, dict) and bool(rows) and rows.get("dynamic") is not True
    targets = name_rules(group, "targets", where)
    if group.get("weights") is None:
        return SchemeGroup(targets, None, static_rows)
    chosen = group.get("format") or fields.get("format")
    if not isinstance(chosen, str) or chosen not in FORMATS:
        raise InvalidRequest(
            f"{where}: format {shown(chosen)} is not supported; it must be one of {', '.join(FORMATS)}"
        )
    return SchemeGroup(targets, _weights(group["weights"], FORMATS[chosen], where + ".weights"), static_rows)


def _weights(fields: Any, stored: Stored, where: str) -> WeightScheme:
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{where} is {shown(fields)}; it must be an object")
    check_known(fields, _WEIGHT_FIELDS, where)

    def wanted(name: str, holds: bool, what: str) -> None:
        if not holds:
            raise InvalidRequest(f"{where}: {name} is {shown(fields.get(name))}, it must be {what}")

    kind, bits = fields.get("type", "int"), fields.get("num_bits", 8)
    is_float = kind == "float"
    wanted("type", kind in ("int", "float"), "int or float")
    if stored == "mxfp4":
        wanted("type", is_float, "float")
        wanted("num_bits", bits == 4, "4")
    elif is_float:
        wanted("num_bits", bits == 8, "8")
        wanted("type", stored == "plain", "int")
    else:
        wanted("num_bits", bits in (4, 8), "4 or 8")
    wanted("dynamic", not fields.get("dynamic"), "false")
    symmetric = fields.get("symmetric", True)
    wanted(
        "symmetric",
        isinstance(symmetric, bool) and (symmetric or not is_float),
        "true or false, true for floats",
    )
    order = fields.get("actorder") or None
    wanted("actorder", order in (None, True, "weight", "static", "group", "dynamic"), "null, weight or group")
    reordered = order in (True, "group", "dynamic")
    wanted("actorder", not reordered or stored == "words", "null or weight in this format")
    strategy, group_size = _strategy(fields, wanted)
    if stored == "mxfp4":
        wanted("group_size", strategy == "group" and group_size == 32, "32")
    wanted("strategy", strategy == "group" or not reordered, "group where actorder is group")
    wanted("strategy", strategy != "block" or (stored == "plain" and symmetric), "tensor, channel or group")
    return WeightScheme(
        stored, bits, is_float, symmetric, strategy, group_size, _block(fields, strategy, wanted), reordered
    )


def _strategy(fields: Mapping[str, Any], wanted: Wanted) -> tuple[Any, int]:
    """The strategy, by the group size where it is not said, and the size of a group."""
    size = fields.get("group_size")
    wanted(
        "group_size", size is None or (type(size) is int and (size == -1 or size > 0)), "above 0, -1 or null"
    )
    usual = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = fields.get("strategy") or usual
    wanted("strategy", strategy in STRATEGIES, f"one of {', '.join(STRATEGIES)}")
    wanted("group_size", strategy != "group" or (size is not None and size > 0), "above 0 for strategy group")
    wanted("group_size", strategy == "group" or size in (None, -1), "null for this strategy")
    return strategy, size or -1


def _block(fields: Mapping[str, Any], strategy: str, wanted: Wanted) -> tuple[int, int]:
    if strategy != "block":
        return (1, 1)
    block = fields.get("block_structure")
    whole = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    wanted("block_structure", whole, "two whole numbers above 0 for strategy block")
    assert isinstance(block, list)
    return block[0], block[1]


@lru_cache(1024)
def _compiled(pattern: str, where: str) -> re.Pattern[str]:
    """Compile only patterns that end: those that repeat a group, or have many repeats, may take hours."""
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if len(pattern) > MAX_PATTERN_CHARS or repeats > MAX_REPEATS or re.search(r"\)[*+{]", pattern):
        raise InvalidRequest(
            f"{where} has the pattern {shown(pattern)}, which may take too long; use one of at most "
            f"{MAX_PATTERN_CHARS} characters and {MAX_REPEATS} repeats, none of them of a group"
        )
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(
            f"{where} has {shown(pattern)}, which is no regular expression ({error})"
        ) from error
