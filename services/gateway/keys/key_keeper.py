"""Keep keys for all gateways: find out what they use before counting, count, and hand over to who comes.

A gateway counts a key only when each other gateway that it knows of has said what it has live. Who asks
takes the key over from whom it outweighs, with what is left of the minute, and who was asked counts no more:
so no two count at a time, be their views of the fleet as they may. A gateway that was held up for longer than
it takes to be given up asks again before it goes on.

No ledger ever holds more than is left of a minute, whoever counts: one that has handed a key over fills as if
nothing more were used, and who takes it over goes on from the least that anybody holds. What a keeper that
died had counted is lost, so whoever may come after it goes on from nothing. One that was only taken for dead
goes on from what it has, less what was used meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

import structlog

from services.gateway.keys.key_account import KeyAccount, keeper_of, outweighs
from services.gateway.keys.rate_limits import NO_LIMIT, Levels, LimitReached
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import DeadlineExpired, NoListener, PenstockError, ProtocolError, Unavailable
from shared.messages import ClaimKey, KeyClaimed, KeyKeptElsewhere, LeaveKey, Message

log = structlog.get_logger()

TICK_S = 0.2
HELD_UP_S = 0.5
"""A gateway that does not run for so long may be given up by others soon after."""
LISTEN_S = 0.25
"""A gateway counts nothing before it has listened so long for others."""
MET_S = 5.0
"""A gateway that has sent something is there for so long, where no heartbeat of it has come."""
MAX_MET = 1024
"""The most such gateways, as many as a fleet has instances."""
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
        incarnation: int,
    ) -> None:
        self._instance = instance
        self._incarnation = incarnation
        self._bus = bus
        self._fleet = fleet
        self._find = find
        self._accounts = accounts
        self._clock = clock
        self._ticked_s = clock.monotonic_s()
        self._leaving = False
        self._may_forget = asyncio.Event()
        """Others were heard of a key, or are being asked: set until all of it is forgotten."""
        self._began_s = SYSTEM_CLOCK.monotonic_s()
        self._met: dict[str, float] = {}
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
        if not self._keeps(account) or SYSTEM_CLOCK.monotonic_s() < self._began_s + LISTEN_S:
            return False
        others = self._others()
        if not account.kept and not others:
            self._take(account)
        return account.kept and others <= account.heard

    async def ready(self, account: KeyAccount, until: Deadline) -> bool:
        """Hear whoever was not heard yet; return whether this gateway counts the key after that. One that
        another gateway counts is claimed of nobody."""
        if self.counts(account):
            return True
        if not self._keeps(account):
            return False
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

    def meet(self, gateway: str) -> None:
        """A gateway has sent something: it is there, whether or not its heartbeat has come."""
        if len(self._met) < MAX_MET or gateway in self._met:
            self._met[gateway] = self._clock.monotonic_s()

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
            return KeyClaimed(NO_LIMIT, NO_LIMIT, uses=())
        if not self._leaving and not outweighs(account.key_hash, claimer, self._instance):
            return KeyKeptElsewhere()
        taken = account.hand_back(claimer, claim.incarnation) if claim.kept else None
        if taken is not None:
            return KeyClaimed(NO_LIMIT, NO_LIMIT, tuple(account.own_uses), *taken)
        account.hand_over(claimer)
        return KeyClaimed(*account.ledger.levels(), uses=tuple(account.own_uses))

    def inherit(self, left: LeaveKey) -> None:
        """A keeper goes: what it had left of the minute is what is left."""
        account = self._find(left.key_hash)
        if account is not None:
            account.doubt = None  # whoever left may have counted since
            account.ledger.lower(_checked(left.requests_left, left.tokens_left))

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
        """Notice for ever whether this process runs, while there is something to forget where it does not."""
        while True:
            await self._may_forget.wait()
            await asyncio.sleep(TICK_S)
            self._notice_hold_up()
            if not any(account.heard or account.claiming.locked() for account in self._accounts()):
                self._may_forget.clear()

    # ---- inside --------------------------------------------------------------------------------------

    def _keeps(self, account: KeyAccount) -> bool:
        return self.keeper_of(account) == self._instance

    def _others(self) -> set[str]:
        """Return the other gateways that may have something live."""
        views = [view for view in self._fleet.all() if view.heartbeat.role == "gateway"]
        known = {view.heartbeat.instance for view in views}
        here = {
            view.heartbeat.instance
            for view in views
            if view.heartbeat.state != "stalled" and not view.suspect
        }
        if self._met:
            since_s = self._clock.monotonic_s() - MET_S
            here |= {one for one, at_s in self._met.items() if at_s > since_s and one not in known}
        return here - {self._instance}

    async def _claim(self, account: KeyAccount, until: Deadline) -> bool:
        """Ask whoever was not heard; return whether all of them say that the key is this gateway's."""
        account.ended_early.clear()
        self._may_forget.set()
        asked = sorted(self._others() - account.heard)
        said = await asyncio.gather(*(self._ask(account, gateway, until) for gateway in asked))
        claimed = [(gateway, one) for gateway, one in zip(asked, said, strict=True) if one is not None]
        if len(claimed) < len(asked) or not self._keeps(account):
            return False
        self._take(account)
        for gateway, one in claimed:
            account.ledger.replace_uses(gateway, one.uses)
        account.ledger.end_silently(account.ended_early)
        account.heard |= set(asked)
        account.heard_s = self._clock.monotonic_s()
        return self.counts(account)

    async def _ask(self, account: KeyAccount, gateway: str, until: Deadline) -> KeyClaimed | None:
        """Claim the key of one gateway; None where it does not give it, or nothing is heard."""
        ask = ClaimKey(account.key_hash, self._incarnation, account.kept)
        try:
            answer = await self._bus.ask(
                inbox("gateway", gateway), ask, self._bus.envelope(deadline=until), until
            )
        except (DeadlineExpired, Unavailable) as error:
            log.debug("key_not_claimed", peer=gateway, error=error.message)
            self.doubt(gateway)
            if isinstance(error, NoListener) and self._met.pop(gateway, None) is not None:
                return KeyClaimed(NO_LIMIT, NO_LIMIT, uses=())  # it has gone before it was heard of
            return None
        except PenstockError as error:  # it counts by itself, as one of a former version does
            log.warning("key_not_shared", peer=gateway, error=error.message)
            return KeyClaimed(NO_LIMIT, NO_LIMIT, uses=())
        if isinstance(answer, KeyClaimed):
            account.ledger.lower(_checked(answer.requests_left, answer.tokens_left))
            account.ledger.take(_checked(answer.requests_taken, answer.tokens_taken))
            return answer
        account.rival = gateway
        return None

    def _take(self, account: KeyAccount) -> None:
        """Count the key here from now on."""
        account.ledger.replace_uses(self._instance, account.own_uses)
        account.kept = True

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
        self._met.pop(instance, None)
        view = self._fleet.get("gateway", instance) if why == "suspect" else None
        incarnation = None if view is None else view.heartbeat.incarnation
        for account in self._accounts():
            account.lose(instance)
            if why != "stopped" and outweighs(account.key_hash, instance, self._instance):
                # It may have counted; who stops tells what is left.
                account.doubt_keeper(instance, incarnation)


def _checked(requests_left: float, tokens_left: float) -> Levels:
    if not (math.isfinite(requests_left) and math.isfinite(tokens_left)):
        raise ProtocolError(f"{requests_left} and {tokens_left} are no rates")
    return requests_left, tokens_left
