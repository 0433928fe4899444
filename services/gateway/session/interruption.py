"""End a request from outside of its own work: by a deadline, its client, a shutdown or a fault."""

from __future__ import annotations

import asyncio

from services.gateway.rows.row_terms import RowTerms
from shared.errors import PenstockError


class Interruption:
    """The first one of a request; `came` is done once there is one.

    The parts of a session hold this and not the session, which holds them: what goes in a circle is found by
    the garbage collector alone, and that stops every stream while it looks.
    """

    def __init__(self) -> None:
        self.error: PenstockError | None = None
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def row_terms(self) -> RowTerms:
        return RowTerms(((self, "error", None),))

    def interrupt(self, error: PenstockError) -> None:
        """End the request with `error` wherever it is."""
        if self.error is None:
            self.error = error
            self.came.set_result(None)
