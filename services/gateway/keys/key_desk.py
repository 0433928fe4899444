"""Admit requests within the limits of their keys, which hold over all gateways together.

Each key is counted by one gateway, its keeper (`key_keeper`). Where that is this one nothing is sent; else
the keeper is asked for each request that comes, and told what it used.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from services.gateway.keys.allowance import Allowance
from services.gateway.keys.key_account import KeyAccount
from services.gateway.keys.key_keeper import KeyKeeper
from services.gateway.keys.rate_limits import LimitReached
from shared.bus import Bus, Delivery
from shared.bus.subjects import inbox
from shared.deadline import Clock, Deadline
from shared.errors import DeadlineExpired, PenstockError, ProtocolError, Unavailable
from shared.files.api_key_file import LIMITS
from shared.messages import (
    MAX_KEY_USES,
    BeginKeyUses,
    ClaimKey,
    CountKeyRefusals,
    KeyKeptElsewhere,
    KeyUsesBegun,
    KeyUsesRefused,
    LeaveKey,
    Message,
    SettleKeyUse,
)
from shared.tasks import StartTask

log = structlog.get_logger()

ADMIT_S = 2.0
"""The longest time to find the gateway that counts a key: longer than a dead one is taken for alive."""
ASK_S = 0.25
"""The time for one answer of it."""
RETRY_S = 0.02
"""The pause before it is looked for again."""


@dataclass(frozen=True, slots=True)
class WantedUse:
    """The tokens that one request may use. Where not `exact`, the tokens of the prompt are a guess."""

    prompt_tokens: int
    max_tokens: int
    exact: bool

    @property
    def sure_tokens(self) -> int:
        return self.max_tokens + (self.prompt_tokens if self.exact else 1)


class KeyDesk:
    """The part of one gateway, which other gateways ask too (`receive`)."""

    def __init__(self, instance: str, bus: Bus, keeper: KeyKeeper, start: StartTask, clock: Clock) -> None:
        self._instance = instance
        self._bus = bus
        self._keeper = keeper
        self._start = start
        self._clock = clock
        self._numbers = itertools.count()

    async def admit(
        self, account: KeyAccount, wanted: Sequence[WantedUse], deadline: Deadline
    ) -> list[Allowance]:
        """Take in these requests, all or none.

        Raises LimitReached with the time to wait, TooLarge for what would never fit, Unavailable where the
        gateway that counts is not found within ADMIT_S.
        """
        ledger = account.ledger
        for one in wanted:
            ledger.check_size(one.sure_tokens)
        tokens = tuple(ledger.reserved(one.prompt_tokens + one.max_tokens) for one in wanted)
        uses = tuple(next(self._numbers) for _ in wanted)
        account.own_uses.update(uses)
        try:
            await self._begin(account, uses, tokens, deadline.shrink(ADMIT_S))
        except BaseException:
            account.own_uses.difference_update(uses)
            raise
        counted = _CountedUses(self, account)
        return [
            Allowance(counted, use, amount, one.max_tokens)
            for use, amount, one in zip(uses, tokens, wanted, strict=True)
        ]

    def check_rate(self, account: KeyAccount) -> None:
        """Raise LimitReached while no request may come, as far as is known without asking."""
        if account.ledger.limits.requests_per_min is None:
            return
        if not account.holds_back_for(self._keeper.keeper_of(account)):
            account.ledger.check_rate()  # it never holds more than is left, whoever counts
        account.check_told(self._clock.monotonic_s())

    def count_refused(self, account: KeyAccount) -> None:
        """A request is refused for what it asks: it counts as one of the minute."""
        if account.ledger.limits.requests_per_min is None:
            return
        if self._keeper.keeper_of(account) == self._instance:
            account.ledger.count_refused()
            return
        account.uncounted += 1
        if not account.telling:
            account.telling = True
            self._start("count-key-refusals", self._tell_refusals(account))

    def settle(self, account: KeyAccount, use: int, *, tokens: int, requests: int, ended: bool) -> None:
        """A request that was admitted used more or less than was said, and may have ended."""
        if ended:
            account.own_uses.discard(use)
        keeper = self._keeper.keeper_of(account) if account.ledger.limited else self._instance
        if keeper == self._instance:
            self._keeper.settle(account, self._instance, use, tokens=tokens, requests=requests, ended=ended)
        else:
            told = SettleKeyUse(account.key_hash, use, tokens, requests, ended)
            self._start("settle-key-use", self._tell(keeper, told))

    # ---- what other gateways ask -----------------------------------------------------------------------

    def receive(self, delivery: Delivery, account: KeyAccount | None) -> None:
        """A message about a key; `account` None: this gateway's file has no such key."""
        message, gateway = delivery.message, delivery.sender
        if not gateway:
            raise ProtocolError("a message about a key does not say which gateway it is of")
        self._keeper.meet(gateway)
        match message:
            case BeginKeyUses() | CountKeyRefusals():
                self._start("answer-key", self._answer(delivery, account, gateway))
            case SettleKeyUse() if account is not None:
                self._keeper.settle(
                    account,
                    gateway,
                    message.use,
                    tokens=message.tokens,
                    requests=message.requests,
                    ended=message.ended,
                )
            case ClaimKey():
                answer = self._keeper.answer_claim(message, gateway)
                self._start("answer-claim", self._bus.answer(delivery.envelope, answer, hop="gateway"))
            case LeaveKey():
                self._keeper.inherit(message)

    async def _answer(self, delivery: Delivery, account: KeyAccount | None, gateway: str) -> None:
        answer: Message | PenstockError
        try:
            answer = await self._count(delivery, account, gateway)
        except LimitReached as error:
            answer = KeyUsesRefused(error.limit, round(error.wait_s * 1e6))
        except PenstockError as error:
            answer = error
        await self._bus.answer(delivery.envelope, answer, hop="gateway")

    async def _count(self, delivery: Delivery, account: KeyAccount | None, gateway: str) -> Message:
        """Count what that gateway asks for. Raises LimitReached."""
        message = delivery.message
        if isinstance(message, BeginKeyUses) and (
            not 0 < len(message.uses) == len(message.tokens) <= MAX_KEY_USES or min(message.tokens) < 0
        ):
            raise ProtocolError(
                f"{len(message.uses)} uses of {len(message.tokens)} amounts of tokens are none"
            )
        if account is None:
            return KeyKeptElsewhere(unknown=True)
        until = (self._bus.deadline_of(delivery.envelope) or Deadline.after(ASK_S)).shrink(ASK_S)
        if not await self._keeper.ready(account, until):
            return KeyKeptElsewhere()
        match message:
            case BeginKeyUses(_, uses, tokens):
                if not self._keeper.begin(account, gateway, uses, tokens):
                    return KeyKeptElsewhere()
            case CountKeyRefusals(_, count):
                account.ledger.count_refused(max(0, count))
                account.ledger.check_rate()
        return KeyUsesBegun()

    # ---- inside ----------------------------------------------------------------------------------------

    async def _begin(
        self, account: KeyAccount, uses: tuple[int, ...], tokens: tuple[int, ...], until: Deadline
    ) -> None:
        """Have the requests counted by whoever keeps the key."""
        if not account.ledger.limited:
            account.ledger.begin([(self._instance, use) for use in uses], tokens)
            return
        ask = BeginKeyUses(account.key_hash, uses, tokens)
        why = ""
        while True:
            keeper = self._keeper.keeper_of(account)
            if keeper == self._instance:
                ready = await self._keeper.ready(account, until)
                if ready and self._keeper.begin(account, self._instance, uses, tokens):
                    return
                why = "other gateways do not say what is live of this key"
            elif (reason := await self._ask(account, keeper, ask, until)) == "":
                return
            elif not why or not until.expired():  # an ask that had no time left tells nothing new
                why = reason
            if until.remaining_s() <= RETRY_S:
                raise Unavailable(f"{why}, so its limits cannot be counted: send it again", hop="gateway")
            await asyncio.sleep(RETRY_S)

    async def _ask(
        self, account: KeyAccount, keeper: str, ask: BeginKeyUses | CountKeyRefusals, until: Deadline
    ) -> str:
        """Ask the keeper; "" where it has counted, else why not. Raises LimitReached."""
        deadline = until.shrink(ASK_S)
        try:
            answer = await self._bus.ask(
                inbox("gateway", keeper), ask, self._bus.envelope(deadline=deadline), deadline
            )
        except (DeadlineExpired, Unavailable) as error:
            if account.rival == keeper and isinstance(error, Unavailable):
                account.rival = ""  # nobody listens there
            self._keeper.doubt(keeper)
            self._withdraw(account, keeper, ask)
            return f"{keeper}, which counts this key, does not answer"
        except asyncio.CancelledError:
            self._withdraw(account, keeper, ask)
            raise
        match answer:
            case KeyUsesBegun():
                account.hear_count(keeper)
                return ""
            case KeyUsesRefused(limit, wait_us) if limit in LIMITS:
                wait_s = wait_us / 1e6
                if limit == "requests_per_min":
                    account.refused_until_s = self._clock.monotonic_s() + wait_s
                raise LimitReached.of(account.ledger.name, account.ledger.limits, limit, wait_s)
            case KeyKeptElsewhere(unknown=True):
                return f"{keeper}, which counts this key, has no such key in its file"
        return f"{keeper} does not count this key"

    def _withdraw(self, account: KeyAccount, keeper: str, ask: BeginKeyUses | CountKeyRefusals) -> None:
        """Give back what was asked for in vain and may have been counted."""
        if isinstance(ask, BeginKeyUses):
            for use, tokens in zip(ask.uses, ask.tokens, strict=True):
                told = SettleKeyUse(account.key_hash, use, -tokens, -1, ended=True)
                self._start("withdraw-key-use", self._tell(keeper, told))

    async def _tell_refusals(self, account: KeyAccount) -> None:
        """Tell the keeper of what was refused here, and learn whether more may come."""
        try:
            while account.uncounted:
                count, account.uncounted = account.uncounted, 0
                why = await self._count_refusals(account, count, Deadline.after(ADMIT_S))
                if why:
                    log.warning("key_refusals_not_counted", count=count, error=why)
        except LimitReached:
            log.debug("key_used_up", key=account.ledger.name)
        finally:
            account.telling = False

    async def _count_refusals(self, account: KeyAccount, count: int, until: Deadline) -> str:
        """Have them counted by whoever keeps the key, twice where an answer was lost; returns why they are
        not, "" where they are. Raises LimitReached."""
        while True:
            keeper = self._keeper.keeper_of(account)
            if keeper == self._instance:
                account.ledger.count_refused(count)
                return ""
            why = await self._ask(account, keeper, CountKeyRefusals(account.key_hash, count), until)
            if not why or until.remaining_s() <= RETRY_S:
                return why
            await asyncio.sleep(RETRY_S)

    async def _tell(self, keeper: str, told: SettleKeyUse) -> None:
        try:
            await self._bus.publish(inbox("gateway", keeper), told)
        except PenstockError as error:  # it is heard again before a limit is taken for reached
            log.warning("key_use_not_told", keeper=keeper, error=error.message)


class _CountedUses:
    """The uses of one key, as an allowance settles them."""

    def __init__(self, desk: KeyDesk, account: KeyAccount) -> None:
        self._desk = desk
        self._account = account

    def check_size(self, tokens: int) -> None:
        self._account.ledger.check_size(tokens)

    def settle(self, use: int, *, tokens: int, requests: int = 0, ended: bool) -> None:
        self._desk.settle(self._account, use, tokens=tokens, requests=requests, ended=ended)
