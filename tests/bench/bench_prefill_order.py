"""Time to first token of clients in a closed loop, prompts one after another and all at once.

    python -m tests.bench.bench_prefill_order [--clients N] [--prompt-tokens N,N] [--rounds N] [--chunk N]

In process, on a random Llama that is made for the run, as a prefill worker computes: each client waits for
its first token, is away for as long as its answer would take, and comes again; at first all come at once.
Clients take the lengths of prompts in turns. Time is what the process computes, so that others on the machine
do not count. Both orders go in turns, each on prompts that nobody has seen; "in shares" deals every chunk out
as engines do that batch all that waits: half of it to the shortest, the rest by age, until it is full.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time as busy_s

from safetensors.torch import save_file

from shared.engine import BLOCK_TOKENS, Engine, EngineConfig, SamplingParams
from shared.engine.sequence import LiveSequence
from tests.bench.make_model import SHAPES, random_tensors
from tests.support.percentile import percentile

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

Shares = Callable[[Sequence[LiveSequence], int, int], list[tuple[LiveSequence, int]]]


@dataclass(frozen=True, slots=True)
class Arrival:
    client: int
    turn: int
    at_s: float


def in_shares(waiting: Sequence[LiveSequence], budget: int, _: int) -> list[tuple[LiveSequence, int]]:
    """All that waits, side by side."""
    by_age = sorted(waiting, key=lambda sequence: sequence.order)
    given = dict.fromkeys((sequence.key for sequence in by_age), 0)
    left = budget
    shortest = sorted(by_age, key=lambda sequence: sequence.num_uncomputed)
    for sequences, until in ((shortest, budget - budget // 2), (by_age, 0)):
        for sequence in sequences:
            tokens = max(0, min(sequence.num_uncomputed - given[sequence.key], left - until))
            given[sequence.key] += tokens
            left -= tokens
    return [(sequence, given[sequence.key]) for sequence in by_age if given[sequence.key]]


class Clients:
    """A closed loop of them around one engine."""

    def __init__(self, folder: Path, options: argparse.Namespace, shares: Shares | None) -> None:
        longest = max(options.prompt_tokens)
        self._options = options
        self._random = random.Random(1)
        self._engine = Engine(
            EngineConfig(
                str(folder),
                threads=options.threads,
                kv_blocks=options.clients * (longest // BLOCK_TOKENS + 2),
                max_batch_tokens=options.chunk,
                prefix_cache=False,
            )
        )
        if shares is not None:
            self._engine._scheduler._prompt_order.share_chunk = shares  # type: ignore[method-assign, assignment]
        self._waiting: list[tuple[float, int, int]] = []  # due, client, turn
        self._arrived: dict[str, Arrival] = {}
        self._idle_s = 0.0

    def _now_s(self) -> float:
        return busy_s() + self._idle_s

    def run(self, turns: int) -> Iterator[tuple[str, int, float]]:
        """Of each of so many turns of every client: its phase, prompt tokens, ms to the first token."""
        now_s = self._now_s()
        self._waiting = [(now_s, client, 0) for client in range(self._options.clients)]
        while self._waiting or self._arrived:
            self._admit_due()
            if not self._engine.has_work:
                self._idle_s += max(0.0, self._waiting[0][0] - self._now_s())
                continue
            for output in self._engine.step().outputs:
                arrival = self._arrived.pop(output.key)
                self._engine.release(output.key)
                now_s = self._now_s()
                phase = "in the loop" if arrival.turn else "all at once"
                yield phase, self._length(arrival.client), 1e3 * (now_s - arrival.at_s)
                if arrival.turn + 1 < turns:
                    back_s = now_s + self._options.away_ms / 1e3
                    heapq.heappush(self._waiting, (back_s, arrival.client, arrival.turn + 1))

    def learn_costs(self) -> None:
        """Prompts of any length alone, until the engine knows what they cost."""
        while not self._engine.cost.ready:
            self._admit("warm", self._random.randrange(1, max(self._options.prompt_tokens)))
            while self._engine.has_work:
                self._engine.step()
            self._engine.release("warm")

    def _admit(self, key: str, length: int) -> None:
        prompt = [self._random.randrange(2, SHAPES["l100m"]["vocab_size"]) for _ in range(length)]
        self._engine.admit(key, prompt, length, ONE_TOKEN, stop_after=1)

    def _admit_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._now_s():
            due_s, client, turn = heapq.heappop(self._waiting)
            key = f"{client}-{turn}"
            self._admit(key, self._length(client))
            self._arrived[key] = Arrival(client, turn, due_s)

    def _length(self, client: int) -> int:
        lengths: list[int] = self._options.prompt_tokens
        return lengths[client % len(lengths)]


def lengths_of(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=lengths_of, default=[256])
    parser.add_argument("--away-ms", type=float, default=800.0, help="what an answer takes")
    parser.add_argument("--chunk", type=int, default=512, help="max_batch_tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=6, help="of every client in a round")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    orders: dict[str, Shares | None] = {"in shares": in_shares, "one after another": None}
    taken_ms: dict[tuple[str, int, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_file(random_tensors(SHAPES["l100m"], seed=0), folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(SHAPES["l100m"]), encoding="utf-8")
        clients = {name: Clients(folder, options, shares) for name, shares in orders.items()}
        for _, (name, each) in itertools.product(range(options.rounds), clients.items()):
            each.learn_costs()
            for phase, length, ttft_ms in each.run(options.turns):
                taken_ms.setdefault((phase, length, name), []).append(ttft_ms)
    for (phase, length, name), ttfts_ms in sorted(taken_ms.items()):
        p50, p99 = (percentile(ttfts_ms, share) for share in (0.5, 0.99))
        print(f"{phase}  {length:6} tokens  {name:18}  TTFT p50 {p50:7.0f}  p99 {p99:7.0f} ms")


if __name__ == "__main__":
    main()
