"""Keep the file of API keys in force, with the account of each key.

The file is looked at once a second. New keys and limits count from then on; the requests of a key that was
taken out go on to their end. A file that cannot be used changes nothing until it is put right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog

from services.gateway.keys.api_keys import ApiKeys, presented_key
from services.gateway.keys.key_account import KeyAccount
from services.gateway.keys.rate_limits import KeyLedger
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InvalidRequest
from shared.files.api_key_file import ApiKey, parse_api_keys, read_key_file
from shared.files.file_signature import FileSignature, file_signature
from shared.files.followed_file import FollowedFile
from shared.telemetry import metrics
from shared.ticks import until_tick

log = structlog.get_logger()

POLL_S = 1.0
NOBODY = ApiKey(name="", tenant="", hash="", operator=True)
"""The caller that comes through an open edge, where there is nothing to hide from anybody."""


class KeysInForce:
    """`file` None: everybody may come in, as the tenant "". One that cannot be used raises InvalidRequest."""

    def __init__(self, file: Path | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = None if file is None else FollowedFile(file)
        self._clock = clock
        self._signature: FileSignature = None
        self._keys = ApiKeys(())
        self._accounts: dict[str, KeyAccount] = {}
        if file is None:
            self._put_in_force((NOBODY,))
        else:
            self._signature = file_signature(file)
            self._put_in_force(_load(file))

    def find_key(self, authorization: Sequence[str | bytes]) -> ApiKey:
        """Return the key in these values of an `authorization` header; raises Unauthenticated."""
        return NOBODY if self._file is None else self._keys.find(presented_key(authorization))

    def find_account(self, key_hash: str) -> KeyAccount | None:
        return self._accounts.get(key_hash)

    def accounts(self) -> Collection[KeyAccount]:
        return self._accounts.values()

    async def watch_file(self) -> None:
        """Keep to the file for as long as there is one."""
        while self._file is not None:
            await until_tick(POLL_S)
            await self.reload()

    async def reload(self) -> None:
        """Put the file in force if it has changed; it is in force then, whoever else was just reading it."""
        if self._file is None:
            return
        async with self._file.reading:
            await self._reload(self._file)

    async def _reload(self, file: FollowedFile) -> None:
        signature = await file.signature()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            keys = await asyncio.to_thread(_load, file.path)
        except InvalidRequest as error:
            metrics.API_KEYS_STALE.set(1)
            log.error("api_keys_unusable", error=str(error), keys=len(self._keys))  # noqa: TRY400 - a sentence
            return
        self._put_in_force(keys)
        log.info("api_keys_loaded", keys=len(keys))

    def _put_in_force(self, keys: tuple[ApiKey, ...]) -> None:
        before, self._accounts = self._accounts, {}
        for key in keys:
            account = before.get(key.hash) or KeyAccount(key.hash, KeyLedger(key, self._clock))
            account.ledger.change_key(key)
            self._accounts[key.hash] = account
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
