"""Measure what changes of settings cost a request: `python -m tests.bench.bench_flags`.

Printed are microseconds of one core per request, the median of rounds: nothing in force; 8 changes for a part
of the requests each, none of which it gets; and 8 that it gets. Beside them, a heartbeat's digest of a full
history.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from services.gateway.config import GatewayConfig
from services.gateway.flags.flag_settings import described_settings
from services.gateway.flags.flags_in_force import FlagsInForce
from shared.flags.flag_history import MAX_FLAG_CHANGES, FlagHistory
from shared.messages import FlagChange

ROUNDS = 21
CALLS = 5000
CHANGES = 8
NOW_US = 1_700_000_000_000_000


def changes(tenant: str, share: float) -> list[FlagChange]:
    """Return changes of eight settings, each to what it is anyway."""
    settings = described_settings(GatewayConfig())[:CHANGES]
    return [
        FlagChange(number, "gateway-0", NOW_US, "a", "b", each.name, each.value, tenant=tenant, share=share)
        for number, each in enumerate(settings, start=1)
    ]


def in_force(made: list[FlagChange]) -> FlagsInForce:
    flags = FlagsInForce(GatewayConfig())
    flags.put(FlagHistory().united(made), NOW_US + 1)
    return flags


def median_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return what a call takes of a core, the median of rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(calls):
            call()
        rounds.append((time.process_time() - began_s) / calls * 1e6)
    return statistics.median(rounds)


def of_request(flags: FlagsInForce) -> Callable[[], object]:
    """Return what a request asks: which changes it gets, and its settings, as it is read and as it begins."""

    def ask() -> object:
        versions = flags.versions_for("acme", lambda: "small", "acme\0a session")
        return flags.config_of(versions), flags.config_of(versions)

    return ask


def main() -> None:
    full = FlagHistory().united(
        FlagChange(number, "gateway-0", NOW_US, "a", "b", "rerank", "false")
        for number in range(1, MAX_FLAG_CHANGES + 1)
    )
    print(f"nothing in force        {median_us(of_request(in_force([]))):7.2f} µs a request")
    print(f"8 for another tenant    {median_us(of_request(in_force(changes('globex', 1.0)))):7.2f}")
    print(f"8 that it gets          {median_us(of_request(in_force(changes('acme', 1.0)))):7.2f}")
    print(f"8 for half, by session  {median_us(of_request(in_force(changes('acme', 0.5)))):7.2f}")
    print(f"digest of {MAX_FLAG_CHANGES}           {median_us(lambda: full.digest, 20):7.0f} µs a change")


if __name__ == "__main__":
    main()
