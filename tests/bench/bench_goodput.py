"""Goodput with targets for first tokens and for the time between tokens: how many requests meet both.

    python -m tests.bench.bench_goodput [--trace FILE] [--requests N] [--seeds N] [--fleet]

One prefill and one decode worker of a 135M model in virtual time (`goodput_world.py`), each with a core of
its own, at rising rates: short chats, chats beside long prompts, and with `--trace` the bursts and lengths of
Mooncake's. Chats want their first token within 0.6 s and the others within 60 ms of each other, long prompts
theirs within 4 s. In turns: chunks, paths and predictions by constants; some of them by deadlines; all.
`--fleet` plays chats beside long prompts on the simulated fleet instead, with all services. The same seeds
give the same figures.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog

from tests.bench.goodput_world import Policy, World
from tests.simulation.slo_asks import SMALL_MODEL, Ask, Heard, Target, goodput, poisson_asks, traced_asks
from tests.simulation.slo_load import play
from tests.support.percentile import percentile

CHAT, LONG = Target("chat", 0.6, 0.06), Target("long", 4.0, 0.06)
BY_CONSTANTS = Policy("by constants", steps=False, path=False, ahead=False)
POLICIES = (
    BY_CONSTANTS,
    Policy("predictions", steps=False, path=False),
    Policy("paths and steps", ahead=False),
    Policy("all by deadlines"),
)
RATES = {"chats": (6.0, 10.0, 14.0), "beside long prompts": (2.0, 4.0, 6.0), "bursts": (2.0, 4.0, 6.0)}
TRACE_SCALE = 1 / 48
"""Mooncake's prompts have 12,035 tokens on average; on this model that is a minute."""


def asks_of(mix: str, rate: float, requests: int, seed: int, trace: Path | None) -> list[Ask]:
    """Return about so many requests of a mix, none of one that needs a trace where there is none."""
    seconds = requests / rate
    match mix:
        case "chats":
            return poisson_asks(seed, seconds, {(120, 40, CHAT): rate})
        case "beside long prompts":
            shares = {(80, 40, CHAT): 0.9 * rate, (1500, 20, LONG): 0.1 * rate}
            return poisson_asks(seed, seconds, shares)
    if trace is None:
        return []
    return traced_asks(trace, requests, rate, TRACE_SCALE, [CHAT, LONG], skip=1000 * seed)


def row(mix: str, rate: float, policy: str, heard: Sequence[Heard]) -> str:
    gaps_ms = [1e3 * gap_s for call in heard for gap_s in call.gaps_s]
    firsts_ms = [1e3 * call.ttft_s for call in heard if call.times_s]
    kinds = sorted({call.ask.target.kind for call in heard})
    by_kind = {kind: goodput([call for call in heard if call.ask.target.kind == kind]) for kind in kinds}
    figures = (
        f"{goodput(heard):.1%}",
        ", ".join(f"{kind} {share:.0%}" for kind, share in by_kind.items()),
        f"{percentile(firsts_ms, 0.5):.0f} / {percentile(firsts_ms, 0.99):.0f}",
        f"{percentile(gaps_ms, 0.5):.0f} / {percentile(gaps_ms, 0.99):.0f}",
    )
    return f"| {mix} | {rate:g} | {policy} | {' | '.join(figures)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation_trace.jsonl")
    parser.add_argument("--requests", type=int, default=200, help="of a mix at a rate")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fleet", action="store_true", help="all services of the simulated fleet")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print("| mix | requests/s | what follows deadlines | goodput | of these | TTFT p50 / p99 ms | ITL |")
    print("|---|---|---|---|---|---|---|")
    if options.fleet:
        mix = "beside long prompts"
        for rate in RATES[mix]:
            asks = asks_of(mix, rate, options.requests, 1, None)
            with tempfile.TemporaryDirectory() as folder:
                print(row(mix, rate, "the fleet", play(Path(folder), asks)), flush=True)
        return
    for mix, rates in RATES.items():
        for rate in rates:
            for policy in POLICIES:
                heard: list[Heard] = []
                for seed in range(1, options.seeds + 1):
                    asks = asks_of(mix, rate, options.requests, seed, options.trace)
                    if asks:
                        heard += World(SMALL_MODEL, policy).play(asks)
                if heard:
                    print(row(mix, rate, policy.name, heard), flush=True)


if __name__ == "__main__":
    main()
