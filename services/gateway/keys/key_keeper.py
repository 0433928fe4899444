"""Keep keys for all gateways: find out what they use before counting, count, and hand over to who comes.

A gateway counts a key only when each other gateway that it knows of has said what it has live. Who asks
takes the key over from whom it outweighs, with what is left of the minute, and who was asked counts no more:
so no two count at a time, be their views of the fleet as they may. A gateway that was held up for longer than
it takes to be given up asks again before it goes on. What a keeper that died had counted is lost: its keys go
on from nothing of the minute.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

import structlog

from services.gateway.keys.key_account import KeyAccount, keeper_of, outweighs
from services.gateway.keys.rate_bucket import MINUTE_S
from services.gateway.keys.rate_limits import Levels, LimitReached
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.bus.subjects import inbox
from shared.deadline import Clock, Deadline
from shared.errors import DeadlineExpired, PenstockError, ProtocolError, Unavailable
from shared.messages import ClaimKey, KeyClaimed, KeyKeptElsewhere, LeaveKey, Message

log = structlog.get_logger()

TICK_S = 0.2
HELD_UP_S = 0.5
"""A gateway that does not run for so long may be given up by others soon after."""
HEAR_AGAIN_S = 1.0
"""The others are heard again after so long before a key is taken to have too much live."""


class KeyKeeper:
    """The part of one gateway. `find` returns the account of a key hash that is in force."""

    def __init__(
        self,
        instance: str,
        bus: Bus,
        fleet: FleetView,
        find: Callable[[str], KeyAccount | None],
        accounts: Callable[[], Iterable[KeyAccount]],
        clock: Clock,
    ) -> None:
        self._instance = instance
        self._bus = bus
        self._fleet = fleet
        self._find = find
        self._accounts = accounts
        self._clock = clock
        self._ticked_s = clock.monotonic_s()
        self._lost_s: dict[str, float] = {}
        self._leaving = False
        fleet.on_lost(self._on_lost)
        bus.on_reconnect(self._forget_heard)

    def keeper_of(self, account: KeyAccount) -> str:
        """Return the gateway that counts the key, as far as is known here."""
        gateways = {view.heartbeat.instance for view in self._fleet.instances("gateway")}
        gateways |= {account.rival} - {""}
        gateways.discard(self._instance)
        if not self._leaving or not gateways:
            gateways.add(self._instance)
        return keeper_of(account.key_hash, gateways)

    def counts(self, account: KeyAccount) -> bool:
        """Return whether this gateway's ledger is the fleet's, now."""
        self._notice_hold_up()
        if not self._keeps(account):
            return False
        others = self._others()
        if not account.kept and not others:
            self._take(account, [])
        return account.kept and others <= account.heard

    async def ready(self, account: KeyAccount, until: Deadline) -> bool:
        """Hear whoever was not heard yet; return whether this gateway counts the key after that."""
        if self.counts(account):
            return True
        try:
            async with asyncio.timeout(max(0.0, until.remaining_s())):
                async with account.claiming:
                    return self.counts(account) or await self._claim(account, until)
        except TimeoutError:
            return False

    def begin(
        self, account: KeyAccount, gateway: str, uses: tuple[int, ...], tokens: tuple[int, ...]
    ) -> bool:
        """Count these requests of that gateway. Raises LimitReached; False: what is live is to be heard again
        before that is sure."""
        try:
            account.ledger.begin([(gateway, use) for use in uses], tokens)
        except LimitReached as error:
            now_s = self._clock.monotonic_s()
            if error.limit == "concurrency" and account.heard and now_s >= account.heard_s + HEAR_AGAIN_S:
                account.forget_heard()
                return False
            raise
        return True

    def doubt(self, gateway: str) -> None:
        """Find out soon whether a gateway is there that does not answer."""
        view = self._fleet.get("gateway", gateway)
        if view is not None:
            self._fleet.expect_work(view)

    def settle(
        self, account: KeyAccount, gateway: str, use: int, *, tokens: int, requests: int, ended: bool
    ) -> None:
        """A request of that gateway used more or less than was said."""
        if ended and account.claiming.locked():
            account.ended_early.add((gateway, use))
        account.ledger.settle((gateway, use), tokens=tokens, requests=requests, ended=ended)

    # ---- what others say -----------------------------------------------------------------------------

    def answer_claim(self, claim: ClaimKey, claimer: str) -> Message:
        """Hand the key over to who comes before us, with what is live here."""
        account = self._find(claim.key_hash)
        if account is None:
            return KeyClaimed(kept=False, requests_left=0.0, tokens_left=0.0, uses=())
        if not self._leaving and not outweighs(account.key_hash, claimer, self._instance):
            return KeyKeptElsewhere()
        kept = account.kept or account.inherited
        if not kept and (lost_s := self._lost_s.get(claimer)) is not None:
            kept = True
            account.ledger.empty_since(self._clock.monotonic_s() - lost_s)
        levels = account.ledger.levels()
        account.hand_over(claimer)
        return KeyClaimed(kept, *levels, uses=tuple(account.own_uses))

    def inherit(self, left: LeaveKey) -> None:
        """A keeper goes: what it had left of the minute is what is left."""
        account = self._find(left.key_hash)
        if account is not None and not account.kept:
            account.ledger.set_levels(_checked(left.requests_left, left.tokens_left))
            account.inherited = True

    async def leave(self) -> None:
        """Keep no key from now on, and tell the next keepers what is left of their minutes."""
        self._leaving = True
        for account in list(self._accounts()):
            keeper = self.keeper_of(account)
            if not (account.kept and account.ledger.limited) or keeper == self._instance:
                continue
            try:
                await self._bus.publish(
                    inbox("gateway", keeper), LeaveKey(account.key_hash, *account.ledger.levels())
                )
            except PenstockError as error:
                log.warning("key_not_left", keeper=keeper, error=error.message)
                return

    async def watch(self) -> None:
        """Notice for ever whether this process runs."""
        while True:
            await asyncio.sleep(TICK_S)
            self._notice_hold_up()

    # ---- inside --------------------------------------------------------------------------------------

    def _keeps(self, account: KeyAccount) -> bool:
        return self.keeper_of(account) == self._instance

    def _others(self) -> set[str]:
        """Return the other gateways that may have something live."""
        return {
            view.heartbeat.instance
            for view in self._fleet.all()
            if view.heartbeat.role == "gateway"
            and view.heartbeat.state != "stalled"
            and view.heartbeat.instance != self._instance
            and not view.suspect
        }

    async def _claim(self, account: KeyAccount, until: Deadline) -> bool:
        """Ask whoever was not heard; return whether all of them say that the key is this gateway's."""
        account.ended_early.clear()
        asked = sorted(self._others() - account.heard)
        said = await asyncio.gather(*(self._ask(account, gateway, until) for gateway in asked))
        claimed = [(gateway, one) for gateway, one in zip(asked, said, strict=True) if one is not None]
        if len(claimed) < len(asked) or not self._keeps(account):
            return False
        self._take(account, [one for _, one in claimed if one.kept])
        for gateway, one in claimed:
            account.ledger.replace_uses(gateway, one.uses)
        account.ledger.end_silently(account.ended_early)
        account.heard |= set(asked)
        account.heard_s = self._clock.monotonic_s()
        return self.counts(account)

    async def _ask(self, account: KeyAccount, gateway: str, until: Deadline) -> KeyClaimed | None:
        """Claim the key of one gateway; None where it does not give it, or nothing is heard."""
        ask = ClaimKey(account.key_hash)
        try:
            answer = await self._bus.ask(
                inbox("gateway", gateway), ask, self._bus.envelope(deadline=until), until
            )
        except (DeadlineExpired, Unavailable) as error:
            log.debug("key_not_claimed", peer=gateway, error=error.message)
            self.doubt(gateway)
            return None
        except PenstockError as error:  # it counts by itself, as one of a former version does
            log.warning("key_not_shared", peer=gateway, error=error.message)
            return KeyClaimed(kept=False, requests_left=0.0, tokens_left=0.0, uses=())
        if isinstance(answer, KeyClaimed):
            return answer
        account.rival = gateway
        return None

    def _take(self, account: KeyAccount, kept: list[KeyClaimed]) -> None:
        """Count the key here, from what is left of the minute: what its keepers say, nothing where one is
        lost."""
        ledger = account.ledger
        known = [_checked(one.requests_left, one.tokens_left) for one in kept]
        if account.kept or account.inherited:
            known.append(ledger.levels())
        if known:
            ledger.set_levels((min(level[0] for level in known), min(level[1] for level in known)))
        else:
            ledger.empty_since(self._clock.monotonic_s() - self._keeper_lost_s(account))
        ledger.replace_uses(self._instance, account.own_uses)
        account.kept, account.inherited = True, False

    def _keeper_lost_s(self, account: KeyAccount) -> float:
        """Return when a gateway was lost that may have counted the key; so long ago that it is as good as
        never where none was."""
        weighed = (
            at_s for one, at_s in self._lost_s.items() if outweighs(account.key_hash, one, self._instance)
        )
        return max(weighed, default=-math.inf)

    def _notice_hold_up(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._ticked_s > HELD_UP_S:
            self._forget_heard()
        self._ticked_s = now_s

    def _forget_heard(self) -> None:
        for account in self._accounts():
            account.forget_heard()

    def _on_lost(self, role: str, instance: str, why: str) -> None:
        if role != "gateway" or instance == self._instance:
            return
        now_s = self._clock.monotonic_s()
        if why == "stopped":  # it has told what is left
            self._lost_s.pop(instance, None)
        else:
            self._lost_s[instance] = now_s
        self._lost_s = {one: at_s for one, at_s in self._lost_s.items() if now_s - at_s < MINUTE_S}
        for account in self._accounts():
            account.lose(instance)


def _checked(requests_left: float, tokens_left: float) -> Levels:
    if not (math.isfinite(requests_left) and math.isfinite(tokens_left)):
        raise ProtocolError(f"{requests_left} and {tokens_left} are no rates")
    return requests_left, tokens_left
