"""The sessions of one call, whichever edge it came in by: opened all or none, relayed to their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from services.gateway.request.choices import Choices
from services.gateway.request.resume_count import failed_resume_counted
from services.gateway.request.resume_token import ResumePoint
from services.gateway.scope.call_identity import OWN_REQUEST_ID, REQUEST_ID
from services.gateway.session.ingress import Ingress
from services.gateway.session.response_relay import ResponseWriter, relay_response
from services.gateway.session.session import Session
from shared.errors import PenstockError
from shared.files.api_key_file import ApiKey
from shared.tasks import cancel_until_done, start_task

OTHERS_END_S = 1.0
"""The other choices of a call may take so long to say that they are cancelled, when one has failed."""


class CallSessions:
    def __init__(self, opened: Sequence[Session]) -> None:
        self._opened = opened

    @classmethod
    async def open(
        cls,
        ingress: Ingress,
        key: ApiKey,
        choices: Choices,
        *,
        call_remaining_s: float | None = None,
        cache_salt: str = "",
        resumed: ResumePoint | None = None,
    ) -> Self:
        """Raises why one is not taken; then none is."""
        with failed_resume_counted(resumed):
            opened = await ingress.open_sessions(
                key, choices, call_remaining_s=call_remaining_s, cache_salt=cache_salt, resumed=resumed
            )
        return cls(opened)

    @property
    def request_id(self) -> str:
        """The id of the first choice's request."""
        return self._opened[0].request_id

    @property
    def stream_id(self) -> str:
        """The id of the request that the call's stream began as: its own, or that of the first gateway."""
        resumed = self._opened[0].request.resumed
        return self.request_id if resumed is None else resumed.stream_id

    @property
    def id_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers, or metadata, that name the call: as its client does, and as we do."""
        return (REQUEST_ID, self._opened[0].client_id or self.request_id), (OWN_REQUEST_ID, self.request_id)

    async def relay_all(self, writers: Sequence[ResponseWriter]) -> PenstockError | None:
        """Relay until all have finished; where one has not, cancel the others and return why."""
        if len(writers) == 1:
            return await _relayed(self._opened[0], writers[0])
        relays = [
            start_task(_relayed(session, writer), name=f"relay-{session.request_id}")
            for session, writer in zip(self._opened, writers, strict=True)
        ]
        waiting: set[asyncio.Task[PenstockError | None]] = set(relays)
        try:
            while waiting:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                failed = next((error for task in ended if (error := task.result()) is not None), None)
                if failed is not None:
                    self._cancel("another choice of the same call failed")
                    if waiting:
                        await asyncio.wait(waiting, timeout=OTHERS_END_S)
                    return failed
            return None
        finally:
            await cancel_until_done(*relays)

    def end_call(self) -> None:
        """The edge is done with the call. It lets go of its sessions: gRPC holds a call in a circle with what
        waits for its end, and only the garbage collector finds that.
        """
        self._cancel("the client ended the call")
        opened, self._opened = self._opened, ()
        for session in opened:
            session.on_call_ended()

    def _cancel(self, why: str) -> None:
        """Cancel all choices; one that has ended already stays as it is."""
        for session in self._opened:
            session.cancel_request(why)


async def _relayed(session: Session, writer: ResponseWriter) -> PenstockError | None:
    """Relay one choice; return why it has not finished, be it its request or the way to its client."""
    try:
        return (await relay_response(session, writer)).error
    except PenstockError as error:
        return error
