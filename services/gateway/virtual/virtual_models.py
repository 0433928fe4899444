"""Keep the file of virtual model names in force.

The file is looked at once a second; with it the classifiers are read that it names. Requests that come after
a change are given models by it; one that cannot be used changes nothing until it is put right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import structlog

from services.gateway.config import GatewayConfig
from shared.config.fields import ConfigError
from shared.errors import InvalidRequest
from shared.files.difficulty_head import DifficultyHead, read_difficulty_head
from shared.files.file_signature import FileSignature, file_signature
from shared.files.followed_file import FollowedFile
from shared.files.virtual_model import VirtualModel
from shared.files.virtual_model_file import load_virtual_models
from shared.telemetry import metrics
from shared.ticks import until_tick

log = structlog.get_logger()

POLL_S = 1.0


class VirtualModels:
    """The virtual names of a gateway. `file` None: there are none. One that cannot be used raises
    InvalidRequest."""

    @classmethod
    def of(cls, config: GatewayConfig) -> Self:
        """Raises ConfigError for a file that cannot be used."""
        try:
            return cls(Path(config.virtual_models) if config.virtual_models else None)
        except InvalidRequest as error:
            raise ConfigError(str(error)) from error

    def __init__(self, file: Path | None) -> None:
        self._file = None if file is None else FollowedFile(file)
        self._signature: FileSignature = None
        self._models: Mapping[str, VirtualModel] = {}
        self._heads: Mapping[str, DifficultyHead] = {}
        if file is not None:
            self._signature = file_signature(file)
            self._put_in_force(*_load(file))

    def find(self, name: str) -> VirtualModel | None:
        """Return the virtual model of that name, None where it is none."""
        return self._models.get(name)

    def head_of(self, virtual: VirtualModel) -> DifficultyHead | None:
        """Return its classifier, None where it has none."""
        return self._heads.get(virtual.classifier)

    def all(self) -> Iterable[VirtualModel]:
        return self._models.values()

    async def watch_file(self) -> None:
        """Keep to the file for as long as there is one."""
        while self._file is not None:
            await until_tick(POLL_S)
            await self.reload()

    async def reload(self) -> None:
        """Put the file in force if it has changed; it is in force then, whoever else was just reading it."""
        if self._file is None:
            return
        async with self._file.reading:
            await self._reload(self._file)

    async def _reload(self, file: FollowedFile) -> None:
        signature = await file.signature()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            models, heads = await asyncio.to_thread(_load, file.path)
        except InvalidRequest as error:
            metrics.VIRTUAL_MODELS_STALE.set(1)
            log.error("virtual_models_unusable", error=str(error))  # noqa: TRY400 - a sentence
            return
        self._put_in_force(models, heads)
        log.info("virtual_models_loaded", names=len(models))

    def _put_in_force(self, models: Iterable[VirtualModel], heads: Mapping[str, DifficultyHead]) -> None:
        self._models = {model.name: model for model in models}
        self._heads = heads
        metrics.VIRTUAL_MODELS_STALE.set(0)


def _load(file: Path) -> tuple[tuple[VirtualModel, ...], Mapping[str, DifficultyHead]]:
    """Return the virtual models, and by its path each classifier that they name."""
    models = load_virtual_models(file)
    paths = {model.classifier for model in models if model.classifier}
    return models, {path: read_difficulty_head(Path(path)) for path in paths}
