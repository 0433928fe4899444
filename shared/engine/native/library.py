"""Loads the compiled kernels, where they were built and this CPU can run them."""

from __future__ import annotations

import ctypes
import functools
import platform
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from shared.engine.native.cpu_features import (
    HALVES_FEATURES,
    KERNEL_FEATURES,
    LEAST_FEATURES,
    MATRIX_UNIT_FEATURES,
    NEON_FEATURES,
    WHOLE_FEATURES,
    usable_features,
)
from shared.errors import InternalError

ABI = 34
BUILDS = {
    "_kernels": KERNEL_FEATURES,
    "_kernels_avx512vnni": (*WHOLE_FEATURES, "avx512_vnni"),
    "_kernels_avx512": WHOLE_FEATURES,
    "_kernels_avxvnni": (*HALVES_FEATURES, "avx_vnni"),
    "_kernels_avx2": HALVES_FEATURES,
    "_kernels_neon": NEON_FEATURES,
}
"""The libraries that are made of the same sources, the fastest first, and the features that each needs: those
of x86-64, and that of arm64."""
NativeName = Literal[
    "native",
    "native+amx",
    "native+avx512vnni",
    "native+avx512",
    "native+avxvnni",
    "native+avx2",
    "native+neon",
]
_NAMES: dict[str, NativeName] = {
    "_kernels": "native",
    "_kernels_avx512vnni": "native+avx512vnni",
    "_kernels_avx512": "native+avx512",
    "_kernels_avxvnni": "native+avxvnni",
    "_kernels_avx2": "native+avx2",
    "_kernels_neon": "native+neon",
}

Pointer = ctypes.c_void_p
KvWritten = ctypes.CFUNCTYPE(None, ctypes.c_int)


class ModelShape(ctypes.Structure):
    """Twin of ModelShape in model.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("vocab", "hidden", "heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int) for name in ("qk_norm", "activation", "bf16", "threads")),
        *((name, ctypes.c_int) for name in ("layer_norm", "shared_norm")),
        *((name, ctypes.c_float) for name in ("norm_eps", "attention_scale", "attention_soft_cap")),
        *((name, ctypes.c_float) for name in ("logit_soft_cap", "embedding_scale")),
        *((name, ctypes.c_float) for name in ("swiglu_slope", "swiglu_limit")),
        *((name, ctypes.c_float) for name in ("residual_scale", "logit_scale")),
        *((name, ctypes.c_float) for name in ("query_growth", "query_growth_tokens")),
        *((name, Pointer) for name in ("embedding", "head", "final_norm")),
    ]


class PackedShape(ctypes.Structure):
    """Twin of PackedShape in linear.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("kind", "out", "width", "group", "gated", "storage")),
        ("parts", Pointer * 7),
        ("bytes", ctypes.c_long * 7),
    ]


class PoolShape(ctypes.Structure):
    """Twin of PoolShape in model.h."""

    _fields_ = [
        ("base", Pointer),
        ("num_blocks", ctypes.c_long),
        ("layer_block_bytes", ctypes.c_long),
        ("kind", ctypes.c_int),
    ]


class AttentionShape(ctypes.Structure):
    """Twin of AttentionShape in attention.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    ]


class LayerShape(ctypes.Structure):
    """Twin of LayerShape in model.h."""

    _fields_ = [
        *((name, Pointer) for name in ("attention_in_norm", "query_norm", "key_norm")),
        *((name, Pointer) for name in ("attention_out_norm", "mlp_in_norm", "mlp_out_norm")),
        *((name, Pointer) for name in ("qkv", "output", "router", "gate_up", "down")),
        *((name, Pointer) for name in ("shared_gate_up", "shared_down", "choice_bias", "sinks", "rope")),
        *((name, ctypes.c_int) for name in ("rotary_dim", "window", "group", "row")),
        *((name, ctypes.c_int) for name in ("experts", "experts_per_token", "normalize", "scores")),
        *((name, ctypes.c_int) for name in ("shared_gate", "groups", "groups_per_token", "group_best")),
        ("scale", ctypes.c_float),
    ]


class BatchShape(ctypes.Structure):
    """Twin of BatchShape in model.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("rows", "spans", "logit_rows")),
        *(
            (name, Pointer)
            for name in ("token_ids", "starts", "counts", "first_blocks", "blocks", "logit_row", "adapters")
        ),
        ("on_kv_written", KvWritten),
        ("taps", ctypes.c_int),
        ("tap_layer", Pointer),
        ("tapped", Pointer),
    ]


class DraftBlockShape(ctypes.Structure):
    """Twin of DraftBlockShape in draft_head.h."""

    _fields_ = [(name, Pointer) for name in ("norm", "gate_up", "down")]


class DraftHeadShape(ctypes.Structure):
    """Twin of DraftHeadShape in draft_head.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("taps", "hidden", "vocab", "target_vocab", "blocks", "threads")),
        *((name, ctypes.c_float) for name in ("norm_eps", "confidence_bias")),
        *((name, Pointer) for name in ("taps_norm", "state_norm", "embed_norm", "out_norm", "confidence")),
        *((name, Pointer) for name in ("ids", "fuse", "mix", "head")),
    ]


class DraftRowsShape(ctypes.Structure):
    """Twin of DraftRowsShape in draft_head.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("rows", "most")),
        *((name, Pointer) for name in ("taps", "slots", "token_ids", "lengths", "floors", "needs")),
        *((name, Pointer) for name in ("trusts", "chances", "draws", "ids", "confidences")),
        *((name, Pointer) for name in ("counts", "steps")),
    ]


class EncoderShape(ctypes.Structure):
    """Twin of EncoderShape in encoder.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("hidden", "heads", "layers")),
        ("norm_eps", ctypes.c_float),
        *((name, Pointer) for name in ("words", "positions", "kinds", "norm", "norm_bias")),
    ]


class EncoderLayerShape(ctypes.Structure):
    """Twin of EncoderLayerShape in encoder.h."""

    _fields_ = [
        *((name, Pointer) for name in ("qkv", "output", "up", "down")),
        *((name, Pointer) for name in ("attention_norm", "attention_norm_bias")),
        *((name, Pointer) for name in ("output_norm", "output_norm_bias")),
    ]


class TextsShape(ctypes.Structure):
    """Twin of TextsShape in encoder.h."""

    _fields_ = [
        ("count", ctypes.c_int),
        *((name, Pointer) for name in ("starts", "token_ids", "kinds")),
    ]


class LowRankShape(ctypes.Structure):
    """Twin of LowRankShape in adapter.h."""

    _fields_ = [
        *((name, Pointer) for name in ("down", "scales", "up", "columns")),
        *((name, ctypes.c_long) for name in ("ranks", "num_in")),
    ]


class SlotShape(ctypes.Structure):
    """Twin of Slot in core_arbiter.h, its size included."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("work_class", "cores", "limit", "process")),
        ("cgroup", ctypes.c_uint64),
        ("cpus", ctypes.c_uint64 * 16),
        *((name, ctypes.c_uint32) for name in ("computing", "moves", "requests")),
        ("unused", ctypes.c_uint32 * 7),
    ]


class PromptsShape(ctypes.Structure):
    """Twin of Prompts in core_arbiter.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("requests", "moves")]


_INT, _LONG, _UNSIGNED_LONG = ctypes.c_int, ctypes.c_long, ctypes.c_ulong
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "penstock_abi": (_INT, []),
    "penstock_use_matrix_unit": (None, [_INT]),
    "penstock_has_matrix_unit": (_INT, []),
    "penstock_dense_linear": (Pointer, [Pointer, _INT, Pointer, _INT, _INT, _INT]),
    "penstock_quantized_linear": (Pointer, [*[Pointer] * 5, *[_INT] * 6]),
    "penstock_super_linear": (Pointer, [*[Pointer] * 7, *[_INT] * 3]),
    "penstock_packed_parts": (None, [Pointer, Pointer]),
    "penstock_linear_over": (Pointer, [Pointer]),
    "penstock_map": (Pointer, [_INT, _LONG]),
    "penstock_unmap": (None, [Pointer, _LONG]),
    "penstock_linear_bytes": (_LONG, [Pointer]),
    "penstock_free_linear": (None, [Pointer]),
    "penstock_multiply": (_INT, [Pointer, Pointer, _INT, _INT, Pointer]),
    "penstock_attend": (_INT, [Pointer, Pointer, _INT, Pointer, _INT, _INT, Pointer, Pointer]),
    "penstock_model": (Pointer, [Pointer, Pointer, Pointer, _INT]),
    "penstock_free_model": (None, [Pointer]),
    "penstock_forward": (_INT, [Pointer, Pointer, Pointer]),
    "penstock_poison": (None, [Pointer]),
    "penstock_draft_head": (Pointer, [Pointer, Pointer, Pointer]),
    "penstock_free_draft_head": (None, [Pointer]),
    "penstock_draft": (_INT, [Pointer, Pointer]),
    "penstock_poison_draft_head": (None, [Pointer]),
    "penstock_encoder": (Pointer, [Pointer, Pointer]),
    "penstock_free_encoder": (None, [Pointer]),
    "penstock_encode": (_INT, [Pointer, Pointer, _INT, Pointer]),
    "penstock_board_bytes": (_LONG, []),
    "penstock_take_slot": (None, [Pointer, _INT, Pointer]),
    "penstock_compute": (None, [Pointer, _INT, _INT]),
    "penstock_serve": (None, [Pointer, _INT, ctypes.c_uint32]),
    "penstock_prompts": (None, [Pointer, _INT, Pointer]),
    "penstock_changes": (ctypes.c_uint32, [Pointer]),
    "penstock_change": (None, [Pointer]),
    "penstock_await_change": (None, [Pointer, ctypes.c_uint32, _LONG]),
    "penstock_share": (_INT, [Pointer, _INT]),
    "penstock_join": (None, [Pointer, _INT]),
    "penstock_copy_cells": (_UNSIGNED_LONG, [*[Pointer] * 4, _LONG, _LONG, _INT]),
    "penstock_hash_cells": (_UNSIGNED_LONG, [Pointer, Pointer, _LONG, _LONG]),
    "penstock_read": (ctypes.c_double, [Pointer, _LONG, _INT]),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where they were not built or the CPU lacks an instruction they use.

    Calls release the GIL. Raises InternalError for a library that cannot be loaded or that another version
    of the sources made, InvalidRequest as `usable_features` does.
    """
    path = library_path()
    if path is None:
        return None
    loaded = load(path)
    loaded.penstock_use_matrix_unit(usable_features().issuperset(MATRIX_UNIT_FEATURES))
    return loaded


def native_name() -> NativeName:
    """Return what the kernels that run here are called, by the instructions that set them apart."""
    if has_matrix_unit():
        return "native+amx"
    path = library_path()
    return next((name for build, name in _NAMES.items() if path == path_of(build)), "native")


def has_matrix_unit() -> bool:
    """Return whether products and attention are computed on the matrix unit here, whose sums of bf16 have an
    order of their own: of the same numbers they make other bits than kernels without it."""
    kernels = library()
    return kernels is not None and bool(kernels.penstock_has_matrix_unit())


def why_no_library() -> str:
    """Return what keeps the kernels from running here, as a part of a sentence; empty where nothing does."""
    if library_path() is not None:
        return ""
    least = LEAST_FEATURES.get(platform.machine())
    if least is None:
        return f"the kernels are for {' and '.join(LEAST_FEATURES)}, and this machine is {platform.machine()}"
    missing = [name for name in least if name not in usable_features()]
    if missing and not usable_features().issuperset(KERNEL_FEATURES):
        return f"this CPU lacks {', '.join(missing)}"
    return "the kernels were not built: a C++ compiler was missing"


def library_path() -> Path | None:
    """Return the fastest build that is there and that this CPU can run."""
    paths = map(path_of, runnable_builds(usable_features()))
    return next((path for path in paths if path.is_file()), None)


def runnable_builds(features: frozenset[str]) -> list[str]:
    """Return those that a CPU with these features can run, the fastest first."""
    return [build for build, needed in BUILDS.items() if features.issuperset(needed)]


def path_of(build: str) -> Path:
    """Return where a build's library is, if it was built."""
    return Path(__file__).with_name(f"{build}{sysconfig.get_config_var('EXT_SUFFIX')}")


def load(path: Path) -> ctypes.CDLL:
    """The library at `path`, its functions typed; raises InternalError as `library` does."""
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise InternalError(
            f"{path.name} cannot be loaded ({error}); run `make setup` or `pip install -e .` again"
        ) from error
    # First of all: another build may lack the functions below.
    if not hasattr(loaded, "penstock_abi") or loaded.penstock_abi() != ABI:
        raise InternalError(
            f"{path.name} was built from other sources; run `make setup` or `pip install -e .` again"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function: Callable[..., object] = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]  # ctypes' own way
    return loaded


def free_with(owner: object, free: Callable[[int], object], handle: int) -> None:
    """Calls `free(handle)` once `owner` is gone.

    Not at the interpreter's exit: a daemon thread may be computing with it still, and all memory goes anyway.
    """
    weakref.finalize(owner, free, handle).atexit = False
