"""Handle what the server has refused a connection: counted every time, logged once per subject."""

from __future__ import annotations

import structlog

from shared.errors import Unavailable
from shared.telemetry import metrics

log = structlog.get_logger()

MAX_REMEMBERED = 256
"""Different subjects that are logged; beyond them refusals are only counted."""


class Denials:
    """nats-py tells of refusals in its error callback alone, and in small letters."""

    def __init__(self, connection: str) -> None:
        self._connection = connection
        self._sentences: set[str] = set()

    def take(self, error: Exception) -> bool:
        """Return whether `error` is a refusal; if so, it has been dealt with."""
        sentence = str(error).lower()
        if "permissions violation" not in sentence:
            return False
        metrics.DROPPED_MESSAGES.labels(reason="permission").inc()
        if sentence not in self._sentences and len(self._sentences) < MAX_REMEMBERED:
            self._sentences.add(sentence)
            log.error("bus_permission_denied", connection=self._connection, error=str(error))
        return True

    def check_subscribed(self, subject: str) -> None:
        """Check, once the server has seen the subscription, that it stands. Raises Unavailable when it was
        refused."""
        refusal = f'subscription to "{subject.lower()}"'
        if any(refusal in sentence for sentence in self._sentences):
            raise Unavailable(f"the NATS server does not let this user read {subject}; check its credentials")
