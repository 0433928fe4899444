"""What of the KV's way to decode a request waits for: `python -m tests.bench.bench_kv_exposed --model DIR`.

Layers leave while the next ones are computed, so what follows the sampling of the first token is exposed:
`kv.transfer` of the timeline, as the receiver counts it. How long KvDone was on its way no clocks of two
processes can say, so the share with all of `bus`, the first token's way from prefill to the gateway, stands
beside it. Both against the computing of the prompt, through a whole stack on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path

from tests.support.client import connect, generate, request
from tests.support.models import target_model
from tests.support.stack import Stack, value_of

PROMPT_TOKENS = (256, 2048)
TRANSPORTS = ("nats", "shm")


async def phases_us(stack: Stack, prompt: list[int]) -> dict[str, int]:
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(prompt, max_tokens=4, ignore_eos=True))
    assert answer.outcome == "finished", answer.details
    assert answer.end is not None
    return {phase.name: phase.duration_us for phase in answer.end.timeline.phases}


async def measure(stack: Stack, transport: str, requests: int) -> None:
    await phases_us(stack, list(range(20, 60)))
    for tokens in PROMPT_TOKENS:
        taken = []
        for turn in range(requests):
            # A prompt of its own each time: what decode has already is not sent.
            prompt = [(7 * turn + 3 * i) % 300 + 20 for i in range(tokens)]
            taken.append(await phases_us(stack, prompt))
        exposed, bus, computed = (
            statistics.median(phases[name] for phases in taken) / 1e3
            for name in ("kv.transfer", "bus", "prefill.compute")
        )
        print(
            f"{transport:5} {tokens:5} tokens: exposed {exposed:6.2f} ms of {computed:7.1f} ms, "
            f"{exposed / computed:6.2%}; with the bus {(exposed + bus) / computed:5.1%}",
            flush=True,
        )
    (decode,) = stack.instances("decode")
    landed = value_of(decode, f'penstock_kv_transfers_total{{outcome="received",transport="{transport}"}}')
    assert landed == 1 + len(PROMPT_TOKENS) * requests, landed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="checkpoint directory; the tests' small one by default")
    parser.add_argument("--requests", type=int, default=11)
    options = parser.parse_args()
    model = options.model or str(target_model(Path("/tmp/penstock-bench")))
    for transport in TRANSPORTS:
        up = ("--model", model, "--corpus", "none", "--retriever", "0", "--draft", "none")
        with Stack(*up, "--kv-transport", transport) as stack:
            asyncio.run(measure(stack, transport, options.requests))


if __name__ == "__main__":
    main()
