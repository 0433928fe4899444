"""Note who is asked for a call, and when, as long as it lasts: what becomes its record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from services.gateway.scope.arrival import arrived_s
from services.gateway.scope.call_identity import call_identity
from services.gateway.tracing.text_call_record import CallAsk, TextCallRecord
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import Cancelled, PenstockError
from shared.telemetry.trace_sampler import TraceSampler

MAX_CALL_ASKS = 512
"""The most questions of a call that its record keeps: the first ones. One call for embeddings has up to 256
parts."""


class CallTrace:
    """`model` and `corpus` are what the call is of, once that is known. Parts of a call that are asked beside
    each other share its trace."""

    def __init__(
        self, operation: str, tenant: str, sampler: TraceSampler, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._identity = call_identity()
        self.span = sampler.new_span(self._identity.parent)
        self.model = ""
        self.corpus = ""
        self._operation = operation
        self._tenant = tenant
        self._clock = clock
        self._began_s = arrived_s(clock)
        self._asks: list[CallAsk] = []
        self._error: PenstockError | None = None

    @contextmanager
    def asking(self, role: str, instance: str) -> Iterator[None]:
        """An instance is asked as long as this is open."""
        start_us, error = self._elapsed_us(), ""
        try:
            yield
        except PenstockError as trouble:
            error = trouble.code
            raise
        except asyncio.CancelledError:
            error = Cancelled.code
            raise
        finally:
            if len(self._asks) < MAX_CALL_ASKS:
                self._asks.append(CallAsk(role, instance, start_us, self._elapsed_us(), error))

    def fail(self, error: PenstockError) -> None:
        """The call ends with `error`."""
        self._error = error

    def record(self, call_id: str, input_tokens: int) -> TextCallRecord:
        """Return what there is to tell of the call, which is over now."""
        total_us, parent, error = self._elapsed_us(), self._identity.parent, self._error
        return TextCallRecord(
            call_id=call_id,
            client_id=self._identity.client_id,
            span=self.span,
            parent_span_id="" if parent is None else parent.span_id,
            tenant=self._tenant,
            operation=self._operation,
            model=self.model,
            corpus=self.corpus,
            began_unix_us=self._clock.unix_us() - total_us,
            total_us=total_us,
            input_tokens=input_tokens,
            error="" if error is None else error.code,
            error_text="" if error is None else str(error),
            hop="" if error is None else error.hop,
            asks=tuple(self._asks),
        )

    def _elapsed_us(self) -> int:
        return max(0, round((self._clock.monotonic_s() - self._began_s) * 1e6))
