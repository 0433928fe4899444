"""Nothing of one tenant is seen by another: no KV, no kept answer, no passage; and limits of keys hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.corpora import SHARED
from tests.simulation.swarm.asks import ASKS, share_blocks
from tests.simulation.swarm.keys import KEYS, OWNER
from tests.simulation.swarm.plan import Plan, PlannedCall
from tests.simulation.swarm.record import Record

SECRET = f"secret plan of {OWNER}"
"""Words that stand in documents of OWNER alone."""


class Tenancy:
    """What calls of each tenant were asked and given, as far as clients know."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._asked: list[PlannedCall] = []
        self._tenants: dict[str, str] = {}
        """The tenants of requests that clients know the ids of."""
        self._admitted: Counter[str] = Counter()

    def begin(self, call: PlannedCall) -> None:
        self._asked.append(call)

    def admitted(self, call: PlannedCall, request_id: str) -> None:
        """A gateway has let a request in."""
        if request_id not in self._tenants:
            self._tenants[request_id] = call.tenant
            self._admitted[call.key] += 1

    # ---- properties -----------------------------------------------------------------------------------

    def check_passages(self, call: PlannedCall, texts: Iterable[str]) -> None:
        if call.tenant != OWNER and any(SECRET in text for text in texts):
            self._record.breaks("no passage across tenants", call.name, f"{call.tenant} sees {SECRET!r}")

    def check_earlier_answer(self, call: PlannedCall, origin: str) -> None:
        """`origin`: the request whose answer was given again."""
        tenant = self._tenants.get(origin, call.tenant)
        if tenant != call.tenant:
            self._record.breaks("no answer across tenants", call.name, f"{origin} was asked by {tenant}")

    def check_cached(self, call: PlannedCall, cached_tokens: int) -> None:
        """KV that was there at the first route of a request is of one of the same tenant that began alike."""
        ask = ASKS[call.ask]
        if not cached_tokens or ask.n > 1 or ask.corpus:
            return
        others = [one for one in self._asked if one is not call and one.tenant == call.tenant]
        if not any(share_blocks(ask, ASKS[one.ask]) for one in others):
            self._record.breaks("no KV across tenants", call.name, f"{cached_tokens} tokens were cached")

    def check_limits(self, plan: Plan) -> None:
        """No key was let in more often than it may; where gateways break, what was counted may be lost."""
        if not plan.gateways_are_whole:
            return
        for name, key in KEYS.items():
            if plan.changes_key(name):  # who is taken out begins anew
                continue
            if key.requests_per_min and self._admitted[name] > key.requests_per_min:
                self._record.breaks(
                    "limits of keys hold",
                    name,
                    f"{self._admitted[name]} were let in, not {key.requests_per_min}",
                )


def may_search(tenant: str, corpus: str) -> bool:
    return corpus in ("", SHARED, tenant)
