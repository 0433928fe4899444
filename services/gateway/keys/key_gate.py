"""Let calls in by key: the file of API keys in force, with what each key uses. For every edge.

The file is looked at once a second. New keys and limits count from then on; the requests of a key that was
taken out go on to their end. A file that cannot be used changes nothing until it is put right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from services.gateway.config import GatewayConfig
from services.gateway.keys.api_keys import ApiKeys, presented_key
from services.gateway.keys.rate_limits import Allowance, KeyLedger, LimitReached
from services.gateway.request.request import Request
from shared.config.fields import ConfigError
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InvalidRequest, PenstockError, TooLarge, Unauthenticated
from shared.files.api_key_file import ApiKey, parse_api_keys, read_key_file
from shared.files.file_signature import FileSignature, file_signature
from shared.telemetry import metrics

log = structlog.get_logger()

R = TypeVar("R")

POLL_S = 1.0
BYTES_PER_TOKEN = 4
"""The guess for a prompt of text until it is tokenized."""
NOBODY = ApiKey(name="", tenant="", hash="", operator=True)
"""The caller that comes through an open edge, where there is nothing to hide from anybody."""


class NotAnOperator(PenstockError):
    """A page about all tenants was asked for with a key of one of them."""

    code = "permission_denied"


class KeyGate:
    """`file` None: everybody may come in, as the tenant "". One that cannot be used raises InvalidRequest."""

    def __init__(self, file: Path | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = file
        self._clock = clock
        self._signature: FileSignature = None
        self._keys = ApiKeys(())
        self._ledgers: dict[str, KeyLedger] = {}
        if file is None:
            self._put_in_force((NOBODY,))
        else:
            self._signature = file_signature(file)
            self._put_in_force(_load(file))

    @classmethod
    def of(cls, config: GatewayConfig) -> KeyGate:
        """Raises ConfigError for a file that cannot be used."""
        try:
            return cls(Path(config.api_keys) if config.api_keys else None)
        except InvalidRequest as error:
            raise ConfigError(str(error)) from error

    def identify(self, authorization: Sequence[str | bytes]) -> ApiKey:
        """Return the key in these values of an `authorization` header; raises Unauthenticated."""
        if self._file is None:
            return NOBODY
        try:
            return self._keys.find(presented_key(authorization))
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
        self._limited(key, self._ledger_of(key).check_rate)

    def count_refused(self, key: ApiKey, error: PenstockError) -> None:
        """Let a call that is refused for what it asks be one of the minute: else asking so would be free.

        What the gateway has no room for is free, and so is what is over a limit of the key.
        """
        ledger = self._ledgers.get(key.hash)
        if ledger is not None and not error.counted and isinstance(error, InvalidRequest | TooLarge):
            error.counted = True
            ledger.count_refused()

    def admit(self, key: ApiKey, request: Request) -> Allowance:
        """Take the request into the limits of the key; raises LimitReached or TooLarge."""
        ids = request.token_ids
        prompt_tokens = len(ids) if ids is not None else -(-request.prompt_bytes // BYTES_PER_TOKEN)
        return self.admit_tokens(key, prompt_tokens, request.sampling.max_tokens, exact=ids is not None)

    def admit_tokens(self, key: ApiKey, prompt_tokens: int, max_tokens: int, *, exact: bool) -> Allowance:
        """The same for what is no request; `exact` as in `KeyLedger.admit`."""
        ledger = self._ledger_of(key)
        return self._limited(key, lambda: ledger.admit(prompt_tokens, max_tokens, exact=exact))

    def _ledger_of(self, key: ApiKey) -> KeyLedger:
        ledger = self._ledgers.get(key.hash)
        if ledger is None:  # taken out of the file since the call was let in
            metrics.API_KEY_REFUSALS.labels(reason="revoked_key", tenant=key.tenant).inc()
            raise Unauthenticated("this gateway does not know the API key any more: send another one")
        return ledger

    def _limited(self, key: ApiKey, use: Callable[[], R]) -> R:
        """Return what comes of this use of the key; one that is over a limit is counted."""
        try:
            return use()
        except (LimitReached, TooLarge) as error:
            reason = error.limit if isinstance(error, LimitReached) else error.code
            metrics.API_KEY_REFUSALS.labels(reason=reason, tenant=key.tenant).inc()
            raise

    async def watch_file(self) -> None:
        """Keep to the file for as long as there is one."""
        while self._file is not None:
            await asyncio.sleep(POLL_S)
            await self.reload()

    async def reload(self) -> None:
        """Put the file in force if it has changed."""
        if self._file is None:
            return
        signature = await asyncio.to_thread(file_signature, self._file)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            keys = await asyncio.to_thread(_load, self._file)
        except InvalidRequest as error:
            metrics.API_KEYS_STALE.set(1)
            log.error("api_keys_unusable", error=str(error), keys=len(self._keys))  # noqa: TRY400 - a sentence
            return
        self._put_in_force(keys)
        log.info("api_keys_loaded", keys=len(keys))

    def _put_in_force(self, keys: tuple[ApiKey, ...]) -> None:
        before, self._ledgers = self._ledgers, {}
        for key in keys:
            ledger = before.get(key.hash) or KeyLedger(key, self._clock)
            ledger.change_key(key)
            self._ledgers[key.hash] = ledger
        self._keys = ApiKeys(keys)
        metrics.API_KEYS.set(0 if self._file is None else len(keys))
        metrics.API_KEYS_STALE.set(0)


def _load(file: Path) -> tuple[ApiKey, ...]:
    keys = parse_api_keys(read_key_file(file), file)
    if not keys:  # also what is seen of a file that is being written in place
        raise InvalidRequest(
            f"the API keys {file} hold no key: `penstock keys new --tenant NAME --file FILE` adds one"
        )
    return keys
