"""A retriever goes on to the newest index of its corpus, without a pause: the old one serves until the new
one is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from shared.errors import PenstockError
from shared.retrieval.index import PassageIndex
from shared.retrieval.store import current_generation, open_generation

POLL_S = 1.0
"""How often it is looked for; one small file is read each time."""

log = structlog.get_logger()


class IndexFollower:
    """`replace` gets each newer index, in whichever thread `look` is called in."""

    def __init__(
        self, folder: Path, generation: int, embedder: str, replace: Callable[[PassageIndex], None]
    ) -> None:
        self.generation = generation
        """Of the index that is searched; for others to read. An index is in service before its number is."""
        self._folder = folder
        self._embedder = embedder
        self._replace = replace
        self._told = ""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Goes on to the current generation when it is another one. One that cannot be used leaves the old
        one in service, and is told of once."""
        try:
            if current_generation(self._folder) == self.generation:
                return
            opened = open_generation(self._folder, self._embedder)
        except (PenstockError, OSError) as error:
            if str(error) != self._told:
                log.warning(
                    "index_unusable", folder=str(self._folder), error=str(error), action="the old one serves"
                )
            self._told = str(error)
            return
        if opened is not None:
            self._replace(opened.index)
            self.generation, self._told = opened.number, ""
            log.info("index_replaced", generation=opened.number, passages=len(opened.index))
