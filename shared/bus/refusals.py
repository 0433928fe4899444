"""Handle a server that does not let a connection in any more, whose passwords or certificates have changed.

The file with our own is read again at every refusal: who changes both need not restart anything. A refusal
that stays is for a supervisor: the process ends with a sentence, and what is started instead reads all anew.
"""

from __future__ import annotations

import structlog

from shared.bus.client import BusClient, is_refusal, login, refusal
from shared.bus.credentials import Credentials, load_credentials
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InvalidRequest

log = structlog.get_logger()

REFUSED_FOR_S = 30.0
"""A refusal that has stayed for so long is final. A server that is not there meanwhile refuses nobody."""
REFUSED_WAIT_S = 0.5
"""The time between two attempts at a server that refuses us."""
LOG_EVERY_S = 10.0


class Refusals:
    """The refusals of one connection, once it has been open. `wait_s` is between its other attempts."""

    def __init__(
        self,
        client: BusClient,
        name: str,
        url: str,
        credentials: Credentials | None,
        wait_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._name = name
        self._url = url
        self._credentials = credentials
        self._wait_s = wait_s
        self._clock = clock
        self._since_s: float | None = None
        self._logged_s = -LOG_EVERY_S
        self.final = ""
        """The sentence about a refusal that has stayed, or that no other password would end."""

    def take(self, error: Exception) -> bool:
        """Return whether `error` is a refusal; if so, it has been dealt with."""
        if isinstance(error, ConnectionRefusedError):
            self.ended()
        if not is_refusal(error):
            return False
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
            self._client.options["reconnect_time_wait"] = REFUSED_WAIT_S
        sentence = refusal(self._url, self._credentials, error)
        trouble = self._read_again()
        if now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "bus_refused", connection=self._name, error=sentence, credentials=trouble or "read again"
            )
        if now_s - self._since_s >= REFUSED_FOR_S:
            self.final = f"{sentence}; it has done so for {REFUSED_FOR_S:g} s"
        return True

    def ended(self) -> None:
        """Forget it: the connection is open again, or there is no server that would refuse it."""
        self._since_s = None
        self._client.options["reconnect_time_wait"] = self._wait_s

    def _read_again(self) -> str:
        """Log in with what the file says now; return what is wrong with it, "" for nothing."""
        before = self._credentials
        if before is None or not before.file:
            return "there is no file of credentials"
        try:
            now = load_credentials(before.file)
            assert now is not None
            options = login(self._url, now)
        except InvalidRequest as error:
            return error.message
        if now.user != before.user:
            self.final = (
                f"{before.file} names the user {now.user!r} now, and this process is {before.user!r} to the "
                "bus; it has to be started again"
            )
            return self.final
        self._credentials = now
        tls = options.pop("tls")
        self._client.options.update(options)
        if tls is None:
            self._client.options.pop("tls", None)
        else:
            self._client.options["tls"] = tls
        return ""
