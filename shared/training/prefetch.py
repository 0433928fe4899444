"""Batches that are made in a thread while the last one is learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic

from shared.training.loop import Made

QUEUED_BATCHES = 8
PUT_TIMEOUT_S = 0.5


class Prefetch(Generic[Made]):
    """Runs `make` in a thread, a few batches ahead. Use as a context manager."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._queue: Queue[Made | BaseException] = Queue(QUEUED_BATCHES)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="batches", daemon=True)

    def __enter__(self) -> Iterator[Made]:
        self._thread.start()
        return self._batches()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _batches(self) -> Iterator[Made]:
        while True:
            item = self._queue.get(timeout=120)
            if isinstance(item, BaseException):
                raise item
            yield item

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                item: Made | BaseException = self._make()
            except Exception as error:  # noqa: BLE001 - handed to the consumer, which raises it
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=PUT_TIMEOUT_S)
                    break
                except Full:
                    continue
            if isinstance(item, BaseException):
                return
