"""First tokens of light tenants beside a heavy one where nobody waits for a core: what the policy gives.

    python -m tests.bench.bench_fairness [--seconds N] [--seeds N] [--tokens N] [--heavy-times N]

The scenario of the drill `fairness` in the simulated world: real gateways and workers, virtual time, steps
that take what a 135M model's take on one core. Three tenants with a tenth of what the fleet can do, alone,
then beside one with HEAVY_TIMES as much as each, with a tenant for each and in order of arrival; at last four
saturated tenants. The same seeds give the same figures on any machine.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

import structlog

from tests.chaos.drill_fairness import jain
from tests.simulation.fair_scenario import Fairness, Scenario


def main() -> None:
    usual = Scenario()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=usual.output_tokens)
    parser.add_argument("--heavy-times", type=float, default=usual.heavy_times)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    scenario = Scenario(options.seconds, options.tokens, options.heavy_times)
    with tempfile.TemporaryDirectory() as folder:
        fairness = Fairness(Path(folder), scenario, range(1, options.seeds + 1))
        print(f"the fleet ends {fairness.capacity_per_s:.1f} requests a second")
        found = {"alone": fairness.alone(), "fair": fairness.fair(), "in order": fairness.in_order()}
        for name, each in found.items():
            ttft = f"{each.ttft_ms(0.5):.1f} / {each.ttft_ms(0.99):.1f} ms"
            print(
                f"{name}: TTFT p50 / p99 of light tenants {ttft}, {each.unserved:.1%} unserved, "
                f"{each.tokens_per_s:.0f} tokens/s"
            )
        for phase in found["fair"].phases():
            parts = " | ".join(
                f"{name} {found[name].phase_ms(phase, 0.5):.1f} / {found[name].phase_ms(phase, 0.99):.1f}"
                for name in ("alone", "fair")
            )
            print(f"  {phase}: {parts} ms")
        alone, fair, in_order = found.values()
        print(f"p99 beside of alone {fair.ttft_ms(0.99) / alone.ttft_ms(0.99):.2f}")
        print(f"tokens/s of in order {fair.tokens_per_s / in_order.tokens_per_s:.1%}")
        tokens = fairness.equal_tokens()
        print(f"Jain's index of saturated tenants {jain(tokens):.3f}: {tokens}")


if __name__ == "__main__":
    main()
