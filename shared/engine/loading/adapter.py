"""A LoRA adapter (Hu et al. 2021) as PEFT saves it: which low-rank products are added to which matrices.

Names, shapes and dtypes of all tensors are checked against the base model before one is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.adapter_config import AdapterConfig, load_adapter_config
from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.model_config import ModelConfig
from shared.engine.loading.model_parts import refuse_parts
from shared.engine.loading.rotation_order import halves_order
from shared.engine.loading.tensor_plan import READABLE_DTYPES, Matrix, TensorPlan
from shared.errors import InvalidRequest, NotFound

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_DIGEST_BYTES = 16

AdaptedMatrix = Literal["qkv", "output", "gate_up", "down"]
"""The matrices of a layer that adapters change, by their names in `LayerWeights` and `DenseMlp`."""

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
"""The prefixes of decoders: the first two are of models with a vision tower, by the version of
transformers."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """The low-rank change of one module: y[first_out : first_out + out] += scale * up @ (down @ x)."""

    first_out: int  # of the matrix that the module is a part of
    down: Tensor  # [rank, in], PEFT's lora_A
    up: Tensor  # [out, rank], PEFT's lora_B
    scale: float

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """`layers`: by matrix, what is added to it, in the order of its outputs, in the model's dtype.

    `digest`: 32 hex digits, of all that is computed with it and of nothing else.
    """

    layers: tuple[Mapping[AdaptedMatrix, tuple[LowRank, ...]], ...]
    rank: int  # the largest of a module
    digest: str


@dataclass(frozen=True, slots=True)
class _Target:
    """The place of a linear map of the base model: rows [first_out, first_out + num_out) of a matrix."""

    layer: int
    matrix: AdaptedMatrix
    first_out: int
    num_out: int
    num_in: int


@dataclass(frozen=True, slots=True)
class _Found:
    """The tensors of one module in a file, by name."""

    path: str  # in the model that it was trained over
    down: str = ""
    up: str = ""


def load_adapter_weights(directory: str | Path, config: ModelConfig, max_rank: int) -> AdapterWeights:
    """Read a directory that PEFT's `save_pretrained` has made, for the base model `config`.

    Raises NotFound for missing files, InvalidRequest for what is not a LoRA adapter of this model with ranks
    of up to `max_rank` and for a model with compressed KV; the sentence names the field, the module or the
    tensor.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise NotFound(f"adapter directory {str(folder)!r} does not exist; give one that PEFT has saved")
    refuse_parts(config, ("multi-head latent attention",), "an adapter here", "serve the base model alone")
    stated = load_adapter_config(folder)
    path = folder / ADAPTER_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").exists()
        why = ": adapter_model.bin, which can run code, is not read" if pickled else ""
        raise NotFound(f"{str(folder)!r} has no {ADAPTER_FILE}{why}; save it with safe_serialization")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return _read(file, stated, config, max_rank)
    except (SafetensorError, OSError) as error:
        raise InvalidRequest(f"{ADAPTER_FILE} is damaged ({error}); save the adapter again") from error


def _read(file: Any, stated: AdapterConfig, config: ModelConfig, max_rank: int) -> AdapterWeights:
    places = _places(config)
    found = _modules(file, places, stated, config)
    for name, module in found.items():
        _check_tensors(file, module, places[name], stated, max_rank)
    layers: list[dict[AdaptedMatrix, tuple[LowRank, ...]]] = [{} for _ in config.layers]
    digest = blake2b(digest_size=ADAPTER_DIGEST_BYTES)
    for name, place in places.items():
        if name not in found:
            continue
        module = found[name]
        down, up = file.get_tensor(module.down), file.get_tensor(module.up)
        scale = stated.scale(module.path, len(down))
        digest.update(f"{name} {scale.hex()} ".encode())
        for tensor in (down, up):
            _check_finite(tensor, module)
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy())
        # A tensor from safetensors may sit at any byte offset of the file map; a copy is aligned and ours.
        down, up = (each.to(TORCH_DTYPES[config.dtype], copy=True) for each in (down, up))
        if place.matrix == "qkv" and config.neighbours_rotate:
            own = slice(place.first_out, place.first_out + place.num_out)
            up = up[halves_order(config)[own] - place.first_out]
        here = layers[place.layer]
        here[place.matrix] = (*here.get(place.matrix, ()), LowRank(place.first_out, down, up, scale))
    rank = max(each.rank for layer in layers for parts in layer.values() for each in parts)
    return AdapterWeights(tuple(layers), rank, digest.hexdigest())


def _places(config: ModelConfig) -> dict[str, _Target]:
    """Return, by name from `layers.` on, all linear maps that can be adapted, in the order of layers and
    outputs."""
    plan = TensorPlan(replace(config, quantization=None), ())
    places: dict[str, _Target] = {}
    for layer, shape in enumerate(config.layers):
        matrices: list[tuple[AdaptedMatrix, Matrix]] = [
            ("qkv", plan.qkv(layer)),
            ("output", plan.output(layer)),
        ]
        if shape.moe is None:
            gate_up, down = plan.mlp(layer)
            matrices += [("gate_up", gate_up), ("down", down)]
        for role, matrix in matrices:
            first_out = 0
            for module, num_out in zip(matrix.modules, matrix.num_out, strict=True):
                name = module[module.index("layers.") :]
                places[name] = _Target(layer, role, first_out, num_out, matrix.num_in)
                first_out += num_out
    return places


def _modules(
    file: Any, places: Mapping[str, _Target], stated: AdapterConfig, config: ModelConfig
) -> dict[str, _Found]:
    """Return, by their names in `places`, the modules that the file changes, each with both matrices."""
    found: dict[str, _Found] = {}
    for tensor in sorted(file.keys()):
        parsed = _TENSOR.fullmatch(tensor)
        if parsed is None:
            raise InvalidRequest(f"{ADAPTER_FILE} holds {shown(tensor)}, which is no low-rank product")
        path, kind = parsed.groups()
        name = _without_prefix(path)
        if name not in places:
            what = "experts cannot have adapters" if ".experts" in path else _adaptable(places, config)
            raise InvalidRequest(f"the adapter changes {shown(path)}: {what}")
        if not stated.is_target(path):
            raise InvalidRequest(
                f"{ADAPTER_FILE} changes {path}, which is none of target_modules; save the adapter again"
            )
        module = found.setdefault(name, _Found(path))
        if module.path != path:
            raise InvalidRequest(f"{ADAPTER_FILE} changes one module as {module.path} and as {path}")
        found[name] = replace(module, **{"down" if kind == "A" else "up": tensor})
    if not found:
        raise InvalidRequest(f"{ADAPTER_FILE} holds no tensors; save the adapter again")
    for module in found.values():
        if not module.down or not module.up:
            lacking = "lora_B" if module.down else "lora_A"
            raise InvalidRequest(f"{ADAPTER_FILE} lacks {lacking} of {module.path}; save the adapter again")
    unmet = stated.unmet_targets([module.path for module in found.values()])
    if unmet:
        raise InvalidRequest(f"{ADAPTER_FILE} lacks target module {shown(unmet[0])}; save the adapter again")
    return found


def _without_prefix(path: str) -> str:
    return next((path.removeprefix(each) for each in _PREFIXES if path.startswith(each)), path)


def _adaptable(places: Mapping[str, _Target], config: ModelConfig) -> str:
    names = dict.fromkeys(name.split(".", 2)[2] for name in places)
    return f"of this {config.architecture} {', '.join(names)} of {config.num_layers} layers can have adapters"


def _check_tensors(file: Any, module: _Found, place: _Target, stated: AdapterConfig, max_rank: int) -> None:
    """Raise InvalidRequest unless both are what the base model's shape and the configuration demand."""
    down, up = file.get_slice(module.down), file.get_slice(module.up)
    shapes = tuple(down.get_shape()), tuple(up.get_shape())
    rank = shapes[0][0] if shapes[0] else 0
    wanted = (rank, place.num_in), (place.num_out, rank)
    if shapes != wanted or not rank:
        trained = f", it was trained over {shown(stated.base_name)}" if stated.base_name else ""
        raise InvalidRequest(
            f"lora_A and lora_B of {module.path} have shapes {shapes[0]} and {shapes[1]}, this model needs "
            f"(r, {place.num_in}) and ({place.num_out}, r): the adapter is another model's{trained}"
        )
    if rank not in (stated.rank, *stated.ranks):
        raise InvalidRequest(f"{module.path} has rank {rank}, which adapter_config.json does not say")
    if rank > max_rank:
        raise InvalidRequest(f"{module.path} has rank {rank}, above max_adapter_rank {max_rank}; raise that")
    for view in (down, up):
        if view.get_dtype() not in READABLE_DTYPES:
            raise InvalidRequest(
                f"{module.path} has weights of {view.get_dtype()}; only {', '.join(READABLE_DTYPES)} are read"
            )


def _check_finite(tensor: Tensor, module: _Found) -> None:
    if not torch.isfinite(tensor).all():
        raise InvalidRequest(f"{ADAPTER_FILE}: weights of {module.path} are no finite numbers; train again")
