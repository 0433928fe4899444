"""The names of a call: the id that its client sees, and the trace that it is a part of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from shared.seams.chance import CHANCE
from shared.telemetry.trace_context import TraceContext, read_traceparent

REQUEST_ID = "x-request-id"
"""The header and metadata with the id of a call: the client's own, where it sent one that can be used."""
OWN_REQUEST_ID = "x-penstock-request-id"
"""The header and metadata with our id of the first request of a call, whatever its client calls it."""
MAX_CLIENT_ID_CHARS = 128
"""The longest id that a client may give its call; a longer one, or one with other characters than letters,
digits and `._:/+=@-`, is replaced by ours."""

_CLIENT_ID = re.compile(rf"[A-Za-z0-9._:/+=@-]{{1,{MAX_CLIENT_ID_CHARS}}}")


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """`endpoint` is what was called, "" where that is no request; `client_id` is the client's name of the
    call, "" for none; `parent` its span, None for none; `token` becomes a part of our own id."""

    endpoint: str = ""
    client_id: str = ""
    parent: TraceContext | None = None
    token: str = field(default_factory=lambda: CHANCE.hex_digits(6))

    def request_id(self, gateway: str, choice: int = 0) -> str:
        """Return our id of a request of the call: it says which gateway has it."""
        return f"{gateway}.{self.token}" if choice == 0 else f"{gateway}.{CHANCE.hex_digits(6)}"

    def shown_id(self, gateway: str) -> str:
        """Return the id by which the client knows the call."""
        return self.client_id or self.request_id(gateway)


_identity: ContextVar[CallIdentity] = ContextVar("call_identity")
"""Set in the task of a call as soon as there is one."""


def note_identity(
    endpoint: str, request_ids: Sequence[str | bytes], traceparents: Sequence[str | bytes]
) -> CallIdentity:
    """Note who the call of this task is, by all values of both headers; what cannot be used counts as
    none."""
    identity = CallIdentity(endpoint, _client_id(request_ids), read_traceparent(traceparents))
    _identity.set(identity)
    return identity


def call_identity() -> CallIdentity:
    """Return who the call of this task is; a new one where nobody noted it."""
    identity = _identity.get(None)
    return CallIdentity() if identity is None else identity


def _client_id(values: Sequence[str | bytes]) -> str:
    """Return the one value that is an id, "" where there is none or more than one."""
    if len(values) != 1 or not isinstance(values[0], str):
        return ""
    return values[0] if _CLIENT_ID.fullmatch(values[0]) else ""
