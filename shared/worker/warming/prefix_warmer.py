"""Warming at a worker: what gateways ask for, between the driver of its engine and its prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.deadline import Deadline
from shared.messages import Envelope, Held, Warm
from shared.worker.adapters import WorkerAdapters
from shared.worker.driver import EngineDriver
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.warming.warm_part import WarmPrefix
from shared.worker.warming.warming import Warming, read_warm


class PrefixWarmer:
    """`changed` is called when there is more in the prefix cache: gateways place by it."""

    def __init__(
        self,
        driver: EngineDriver[Any],
        mirror: PrefixMirror,
        adapters: WorkerAdapters,
        changed: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._mirror = mirror
        self._adapters = adapters
        self._changed = changed
        self._warming = Warming()

    def offer(self, envelope: Envelope, warm: Warm, deadline: Deadline | None, *, busy: bool) -> None:
        """Begin with it at the next turn, unless the worker is busy.

        Raises what `read_warm` raises, and Overloaded where its adapter is not loaded here.
        """
        engine = self._driver.engine
        prefix = read_warm(
            envelope,
            warm,
            deadline,
            adapter=self._adapters.engine_name(warm.adapter),
            vocab_size=engine.model_config.vocab_size,
            max_model_len=engine.max_model_len,
        )
        self._warming.offer(prefix, busy=busy or not engine.config.prefix_cache)

    def go_on(self, *, busy: bool) -> None:
        """Once a turn, before the engine goes on: order the next part, where that is all there is to do.

        Where a prefix has ended that is one of the next prefix: nothing may wake the worker for that.
        """
        part = self._driver.take_part()
        if part is not None and self._warming.record_part(part):
            self._changed()
        prefix = self._warming.choose(busy=busy)
        while prefix is not None and not self._driver.computes_part:
            known_tokens = self._mirror.overlap_blocks(prefix.block_hashes) * HASH_BLOCK_TOKENS
            start = self._warming.next_start(known_tokens, busy=busy)
            if start is None:
                prefix = self._warming.choose(busy=busy)
            else:
                self._driver.order_part(prefix, start)

    def cancel(self, request_id: str, sender: str) -> bool:
        """Return whether anything was being warmed for that request of `sender`."""
        return self._warming.cancel(request_id, sender)

    def cancel_of(self, gateway: str) -> None:
        """Cancel what that gateway wanted: it is gone."""
        self._warming.cancel_of(gateway)

    def held(self) -> Iterable[Held]:
        for prefix in self._warming.known:
            yield Held(prefix.request_id, "warming", 1, "warming")

    @property
    def adapter(self) -> str:
        """The engine's name of the adapter that is needed now, "" for none."""
        return "" if self._warming.prefix is None else self._warming.prefix.adapter

    @property
    def failed_over(self) -> WarmPrefix | None:
        """Return what the engine has failed over, where it was this."""
        return self._warming.prefix if self._driver.failed_over_part else None
