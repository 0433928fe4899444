"""What lies on the disk of simulated fleets: a model, documents with their index, folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.simulation.corpora import index_corpora
from tests.simulation.swarm.keys import OWNER
from tests.support.models import make_tiny_checkpoint


@dataclass(frozen=True, slots=True)
class Place:
    """`folder` is kept by whoever plays."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Place:
        make_tiny_checkpoint(folder / "model")
        return cls(folder)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def own(self) -> Path:
        """The folder of this process: no other one locks or changes anything there."""
        return self.folder / f"process-{os.getpid()}"

    @property
    def retriever(self) -> Mapping[str, Any]:
        """Return the settings of retrievers; documents are indexed once a process."""
        return _indexed(self.own)

    @property
    def offload(self) -> Path:
        """The folder for KV of sequences that gave way."""
        folder = self.own / "offload"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def keys(self) -> Path:
        self.own.mkdir(parents=True, exist_ok=True)
        return self.own / "keys.toml"


@cache
def _indexed(folder: Path) -> Mapping[str, Any]:
    return index_corpora(folder / "documents", private=OWNER)
