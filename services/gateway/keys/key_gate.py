"""Let calls in by key, whichever edge they come by, as far as the limits of the key go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.gateway.config import GatewayConfig
from services.gateway.keys.allowance import Allowance
from services.gateway.keys.key_account import KeyAccount
from services.gateway.keys.key_desk import KeyDesk, WantedUse
from services.gateway.keys.key_keeper import KeyKeeper
from services.gateway.keys.keys_in_force import KeysInForce
from services.gateway.keys.rate_limits import LimitReached
from services.gateway.request.request import Request
from shared.bus import Bus, Delivery
from shared.bus.fleet import FleetView
from shared.config.fields import ConfigError
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import InvalidRequest, PenstockError, TooLarge, Unauthenticated
from shared.files.api_key_file import ApiKey
from shared.messages import BeginKeyUses, ClaimKey, CountKeyRefusals, LeaveKey, SettleKeyUse
from shared.tasks import StartTask
from shared.telemetry import metrics

BYTES_PER_TOKEN = 4
"""The guess for a prompt of text until it is tokenized."""

KeyMessage = BeginKeyUses | CountKeyRefusals | SettleKeyUse | ClaimKey | LeaveKey
"""The messages of gateways to each other about keys."""


class NotAnOperator(PenstockError):
    """A page about all tenants was asked for with a key of one of them."""

    code = "permission_denied"


class KeyGate:
    def __init__(self, keys: KeysInForce, desk: KeyDesk, keeper: KeyKeeper) -> None:
        self.keys = keys
        self.keeper = keeper
        self._desk = desk

    @classmethod
    def of(
        cls,
        instance: str,
        config: GatewayConfig,
        bus: Bus,
        fleet: FleetView,
        start: StartTask,
        clock: Clock = SYSTEM_CLOCK,
        *,
        incarnation: int,
    ) -> KeyGate:
        """Raises ConfigError for a file that cannot be used."""
        try:
            keys = KeysInForce(Path(config.api_keys) if config.api_keys else None, clock)
        except InvalidRequest as error:
            raise ConfigError(str(error)) from error
        keeper = KeyKeeper(instance, bus, fleet, keys.find_account, keys.accounts, clock, incarnation)
        return cls(keys, KeyDesk(instance, bus, keeper, start, clock), keeper)

    def identify(self, authorization: Sequence[str | bytes]) -> ApiKey:
        """Return the key in these values of an `authorization` header; raises Unauthenticated."""
        try:
            return self.keys.find_key(authorization)
        except Unauthenticated:
            reason = "unknown_key" if authorization else "no_key"
            metrics.API_KEY_REFUSALS.labels(reason=reason, tenant="").inc()
            raise

    def check_operator(self, key: ApiKey) -> None:
        """Raise NotAnOperator for a key that may see nothing of other tenants."""
        if not key.operator:
            metrics.API_KEY_REFUSALS.labels(reason=NotAnOperator.code, tenant=key.tenant).inc()
            raise NotAnOperator(
                "this page is about all tenants: send an operator's key, as `penstock keys new --operator` "
                "makes it",
                hop="gateway",
            )

    def check_rate(self, key: ApiKey) -> None:
        """Raise LimitReached where the key has no request left in this minute, before anything is read."""
        with _limited(key):
            self._desk.check_rate(self._account_of(key))

    def count_refused(self, key: ApiKey, error: PenstockError) -> None:
        """Let a call that is refused for what it asks be one of the minute: else asking so would be free.

        What the gateway has no room for is free, and so is what is over a limit of the key.
        """
        account = self.keys.find_account(key.hash)
        if account is not None and not error.counted and isinstance(error, InvalidRequest | TooLarge):
            error.counted = True
            self._desk.count_refused(account)

    async def admit(self, key: ApiKey, requests: Sequence[Request], deadline: Deadline) -> list[Allowance]:
        """Take the requests of one call into the limits of the key, all or none; raises as
        `KeyDesk.admit`."""
        return await self._admit(key, [_wanted(request) for request in requests], deadline)

    async def admit_text(self, key: ApiKey, text_bytes: int, deadline: Deadline) -> Allowance:
        """The same for a call that is no request."""
        (allowance,) = await self._admit(
            key, [WantedUse(-(-text_bytes // BYTES_PER_TOKEN), 0, exact=False)], deadline
        )
        return allowance

    def receive(self, delivery: Delivery, message: KeyMessage) -> None:
        """Take in a message of another gateway about a key."""
        self._desk.receive(delivery, self.keys.find_account(message.key_hash))

    async def _admit(self, key: ApiKey, wanted: Sequence[WantedUse], deadline: Deadline) -> list[Allowance]:
        with _limited(key):
            return await self._desk.admit(self._account_of(key), wanted, deadline)

    def _account_of(self, key: ApiKey) -> KeyAccount:
        account = self.keys.find_account(key.hash)
        if account is None:  # taken out of the file since the call was let in
            metrics.API_KEY_REFUSALS.labels(reason="revoked_key", tenant=key.tenant).inc()
            raise Unauthenticated("this gateway does not know the API key any more: send another one")
        return account


def _wanted(request: Request) -> WantedUse:
    ids = request.token_ids
    prompt_tokens = len(ids) if ids is not None else -(-request.prompt_bytes // BYTES_PER_TOKEN)
    return WantedUse(prompt_tokens, request.sampling.max_tokens, exact=ids is not None)


@contextmanager
def _limited(key: ApiKey) -> Iterator[None]:
    """Count a use of the key that is over a limit."""
    try:
        yield
    except (LimitReached, TooLarge) as error:
        reason = error.limit if isinstance(error, LimitReached) else error.code
        metrics.API_KEY_REFUSALS.labels(reason=reason, tenant=key.tenant).inc()
        raise
