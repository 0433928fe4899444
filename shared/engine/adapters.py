"""The adapters that an engine has over its model, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, runtime_checkable

from shared.engine.batch import Model, PackedAdapter
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.adapter import AdapterWeights, load_adapter_weights
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.torch_threads import on_one_thread
from shared.errors import InvalidRequest, NotFound

MAX_ADAPTER_NAME = 64
"""The characters of an adapter's name in an engine."""
_ADAPTER_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ADAPTER_NAME - 1}}}")


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """`digest`: 32 hex digits, equal where the same numbers are computed, whatever name and place they have.

    `rank`: the largest of a module. `nbytes`: of memory.
    """

    name: str
    digest: str
    rank: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """One loaded adapter; whoever holds `packed` keeps the weights, loaded or not."""

    info: AdapterInfo
    packed: PackedAdapter


@runtime_checkable
class AdaptableModel(Model, Protocol):
    """A backend that computes spans with adapters."""

    def pack_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """Pack weights for spans of batches of this model. From any thread, also while `forward` runs."""
        ...


class AdapterRegistry:
    """May be used from any thread: a name is looked up at once, whatever is being loaded."""

    def __init__(self, model: Model, model_config: ModelConfig, config: EngineConfig) -> None:
        alone = config.device == "cpu" and config.tensor_parallel == 1
        self._packer = model if alone and isinstance(model, AdaptableModel) else None
        self._model_config = model_config
        self._max_adapters = config.max_adapters
        self._max_rank = config.max_adapter_rank
        self._loaded: dict[str, LoadedAdapter] = {}
        self._loading = Lock()  # one at a time: each has memory for a copy

    def load(self, name: str, directory: str) -> AdapterInfo:
        """See `Engine.load_adapter`."""
        if self._packer is None:
            raise InvalidRequest(
                "adapters need device cpu without tensor_parallel; serve a merged model here"
            )
        if not _ADAPTER_NAME.fullmatch(name):
            raise InvalidRequest(
                f"{shown(name)} is no name for an adapter; take up to {MAX_ADAPTER_NAME} letters, digits, "
                "dots, hyphens and underscores, a letter or digit first"
            )
        with self._loading, on_one_thread():  # besides, steps have the others
            known = self._loaded.get(name)
            if known is None and len(self._loaded) >= self._max_adapters:
                raise InvalidRequest(
                    f"all {self._max_adapters} adapters are loaded; unload one or raise max_adapters"
                )
            weights = load_adapter_weights(directory, self._model_config, self._max_rank)
            if known is not None:
                if weights.digest == known.info.digest:
                    return known.info
                raise InvalidRequest(
                    f"adapter {name!r} is loaded with other weights; unload it or take another name"
                )
            packed = self._packer.pack_adapter(weights)
            info = AdapterInfo(name, weights.digest, weights.rank, packed.nbytes)
            self._loaded[name] = LoadedAdapter(info, packed)
            return info

    def unload(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        if self._loaded.pop(name, None) is None:
            raise NotFound(f"adapter {shown(name)} is not loaded")

    def find(self, name: str) -> LoadedAdapter | None:
        """Return the adapter, None for "", the model alone. Raises InvalidRequest for what is not loaded."""
        if not name:
            return None
        loaded = self._loaded.get(name)
        if loaded is None:
            raise InvalidRequest(f"adapter {shown(name)} is not loaded here; load it, or name one that is")
        return loaded

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        """The adapters in the order in which they were loaded."""
        return tuple(loaded.info for loaded in list(self._loaded.values()))
