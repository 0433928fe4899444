"""The protocol of packed formats, and the checks that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.linear import Linear
from shared.errors import InvalidRequest

FLOAT_DTYPES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The form that a tensor must have to be read; dtypes in the spelling of safetensors."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    other_shape: tuple[int, ...] | None = None  # as good as `shape`, in the same order of numbers


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """The tensors of one module, as they are stored."""

    module: str
    shape: tuple[int, int]  # of its weight: (out, in)
    names: Collection[str]  # of all tensors of the checkpoint
    read_tensor: Callable[[str], Tensor]

    def has(self, part: str) -> bool:
        return f"{self.module}.{part}" in self.names

    def read(self, part: str) -> Tensor:
        return self.read_tensor(f"{self.module}.{part}")

    def read_scales(self, part: str) -> Tensor:
        """Raises InvalidRequest, naming the tensor, for scales that are not finite."""
        scales = self.read(part)
        if not torch.isfinite(scales.float()).all():
            raise InvalidRequest(
                f"{self.module}.{part} holds values that are not finite numbers; the checkpoint is damaged"
            )
        return scales

    def read_bias(self, dtype: torch.dtype) -> Tensor | None:
        """[out]; None where there is none and where it is zeros, as exporters write for models without
        one."""
        bias = self.read("bias").to(dtype) if self.has("bias") else None
        return bias if bias is not None and bias.any() else None


class PackedFormat(ABC):
    """One `quantization_config`, checked. Names are those of modules: `model.layers.0.mlp.up_proj`."""

    @abstractmethod
    def holds(self, module: str, names: Collection[str]) -> bool:
        """Return whether the checkpoint with tensors `names` stores this linear packed."""

    @abstractmethod
    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        """Name and form of every tensor of a packed linear of `shape` (out, in).

        Checkpoints may carry a bias (of zeros) that the architecture does not have; it is used. Raises
        InvalidRequest for a linear that cannot be packed like this.
        """

    @abstractmethod
    def read(self, stored: PackedTensors, dtype: torch.dtype) -> Linear:
        """The linear whose tensors are as `tensors` says. Raises InvalidRequest for values that cannot be."""

    @property
    @abstractmethod
    def held_codes(self) -> tuple[int, int] | None:
        """(bits, group) of what linears are held in, as far as the config tells; group -1: a whole row. None:
        they are dense."""

    def may_ignore(self, name: str) -> bool:
        """Return whether a tensor that no linear has says nothing that the engine uses."""
        del name
        return False


def bias_spec(module: str, num_out: int, names: Collection[str]) -> dict[str, TensorSpec]:
    name = f"{module}.bias"
    return {name: TensorSpec((num_out,), FLOAT_DTYPES)} if name in names else {}


def require(fields: Mapping[str, Any], name: str, holds: bool, wanted: str) -> None:
    if not holds:
        raise InvalidRequest(f"quantization_config: {name} is {shown(fields.get(name))}, it must be {wanted}")


def check_flags(fields: Mapping[str, Any], *names: str) -> None:
    for name in names:
        require(fields, name, isinstance(fields.get(name), bool | None), "true or false")


def check_known(
    fields: Mapping[str, Any], known: Collection[str], where: str = "quantization_config"
) -> None:
    """A field that nobody here knows may change what the tensors mean."""
    for name in fields:
        if name not in known:
            raise InvalidRequest(f"{where}: field {shown(name)} is not known; use a checkpoint without it")


def listed_modules(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    listed = fields.get(name) or []
    whole = isinstance(listed, list) and all(isinstance(each, str) for each in listed)
    require(fields, name, whole, "a list of module names")
    return tuple(listed)


def check_unlisted(module: str, listed: tuple[str, ...], name: str) -> None:
    """Check that a packed module is not among `listed`, which are not packed by the config's field `name`."""
    if any(f".{each}." in f".{module}." for each in listed):
        raise InvalidRequest(
            f"{module} is packed, but quantization_config lists it in {name}; "
            "config.json and weights do not belong together"
        )
