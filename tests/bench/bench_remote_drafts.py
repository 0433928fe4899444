"""Drafts of a speculator on a machine of its own: none, as they come, and ahead of time, in turns.

    python -m tests.bench.bench_remote_drafts [--target FILE|DIR] [--acceptance 0.5 0.7 0.9] [--fans 1 2 3]
        [--tokens N] [--rounds N] [--streams N] [--drafter-share 0.1] [--way-ms 0] [--step-ms N] [--map]

A real nats-server, real decode workers (one for each way, of one target), and the real speculator service
with a drafter that agrees by construction (agreeing_drafter.py): its steps take a share of the target's and
no CPU. With `--step-ms` the target's take that long, too, and 6 % more for each further row, for a machine
that others compute on (sleeping_target.py). `--map` prints instead where remote drafts win, as a simulation
says (draft_rounds.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from shared.bus.nats_server import nats_server_binary
from tests.bench.agreeing_drafter import SETTINGS, Agreement
from tests.bench.draft_rounds import print_map
from tests.bench.sleeping_target import STEP
from tests.integration.workers_harness import Edge, Stream, edge_of
from tests.support.engine import save_random_model
from tests.support.sampling import sampling
from tests.support.wait import until

TARGET = Path("/tmp/peers/models/l1b-q8_0.gguf")
PROMPT_TOKENS = 48
OFF, TODAY = "off", "as they come"
WAIT_S = 600.0
ROW_SHARE, BRANCH_SHARE = 0.06, 0.03
ROUND = re.compile(r'penstock_draft_rounds_total\{end="(\w+)"\} (\S+)')
DRAFTS = re.compile(r'penstock_draft_(proposed|accepted)_total\{source="speculator"\} (\S+)')


class Processes:
    """A nats-server and services; all end with this one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.nats_url = f"nats://127.0.0.1:{port}"
        self._start("nats", [str(nats_server_binary()), "-a", "127.0.0.1", "-p", str(port)], {})

    def service(self, role: str, instance: str, module: str = "", **settings: object) -> None:
        prefix = f"PENSTOCK_{role.upper()}_"
        environ = {f"{prefix}{name.upper()}": str(value) for name, value in settings.items()}
        environ |= {"PENSTOCK_NATS_URL": self.nats_url, "PENSTOCK_INSTANCE": instance}
        if module:  # it sleeps for the most part
            environ |= {"OMP_NUM_THREADS": "1", f"{prefix}THREADS": "1"}
        self._start(instance, [sys.executable, "-m", module or f"services.{role}"], environ)

    def end(self, count: int = 0) -> None:
        """End the last `count` that were started; 0: all."""
        for process in self._running[-count:]:
            process.kill()
            process.wait(60)
        del self._running[-count:]

    def _start(self, name: str, command: list[str], environ: dict[str, str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(command, env={**os.environ, **environ}, stdout=log, stderr=subprocess.STDOUT)
            )


@contextmanager
def processes() -> Iterator[tuple[Processes, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        running = Processes(Path(folder))
        try:
            yield running, Path(folder)
        except BaseException:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.stem}", *log.read_text("utf-8").splitlines()[-8:], sep="\n", file=sys.stderr)
            raise
        finally:
            running.end()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to draft: the decode worker that does so, and whether it is given a speculator."""

    name: str
    decode: str
    drafts: bool


@dataclass(slots=True)
class Run:
    """Hold what streams that began together came to."""

    itl_ms: float
    tokens_per_step: float


def prompt_of(number: int, vocab_size: int) -> list[int]:
    return [(7919 * (index + 1) * (number + 3)) % (vocab_size - 100) + 50 for index in range(PROMPT_TOKENS)]


async def run(edge: Edge, way: Way, options: argparse.Namespace) -> tuple[Run, list[list[int]]]:
    """Returns the prompts with their answers, too."""
    how = sampling(max_tokens=options.tokens, ignore_eos=True)
    prompts = [prompt_of(number, options.vocab_size) for number in range(options.streams)]
    speculator = "speculator-0" if way.drafts else ""
    ids = [edge.new_id() for _ in prompts]
    for request_id, prompt in zip(ids, prompts, strict=True):
        await edge.reserve(
            request_id, prompt, prefill="", decode=way.decode, speculator=speculator, how=how, seconds=WAIT_S
        )
    spans = await asyncio.gather(*(timed(edge.streams[request_id, 1]) for request_id in ids))
    streams = [edge.streams[request_id, 1] for request_id in ids]
    answers = [stream.token_ids for stream in streams]
    itl_ms = statistics.mean(1e3 * span / (options.tokens - 1) for span in spans)
    per_step = sum(map(len, answers)) / sum(stream.steps for stream in streams)
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    return Run(itl_ms, per_step), texts


async def timed(stream: Stream) -> float:
    """Return the seconds from its first token to its last."""
    await until(lambda: stream.ids or stream.lost, timeout_s=WAIT_S)
    began_s = time.perf_counter()
    await until(lambda: stream.finish or stream.lost, timeout_s=WAIT_S)
    assert stream.lost is None, stream.lost
    return time.perf_counter() - began_s


def rounds_of(edge: Edge, instance: str) -> dict[str, float]:
    """Return how many rounds of a decode worker have ended so far, and with what."""
    view = edge.fleet.get("decode", instance)
    assert view is not None
    with urllib.request.urlopen(f"http://{view.heartbeat.metrics}/metrics", timeout=30) as page:
        text = page.read().decode()
    return {name: float(count) for name, count in (*ROUND.findall(text), *DRAFTS.findall(text))}


async def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    ways = [Way(OFF, "decode-0", drafts=False), Way(TODAY, "decode-0", drafts=True)]
    ways += [Way(f"ahead, F = {fan}", f"decode-{fan}", drafts=True) for fan in options.fans]
    found: list[dict[str, object]] = []
    with processes() as (running, folder):
        target = options.target
        if options.step_ms:
            os.environ[STEP] = json.dumps((options.step_ms, ROW_SHARE * options.step_ms))
            target = save_random_model(
                folder / "target", vocab_size=options.vocab_size, max_position_embeddings=4096
            )
        for fan in {0, *options.fans}:
            running.service(
                "decode",
                f"decode-{fan}",
                model=target,
                draft_fan=fan,
                draft_tokens=options.draft_tokens,
                draft_batch_tokens=options.draft_tokens * max(8, options.streams),
                ngram_tokens=0,
                kv_memory_mb=128,
                max_sequences=max(2, options.streams),
                metrics_port=0,
                module="tests.bench.sleeping_target" if options.step_ms else "",
            )
        async with edge_of(running.nats_url, "target") as edge:
            await edge.ready(*{way.decode for way in ways})
            plain, texts = await run(edge, ways[0], options)
            step_ms = plain.itl_ms
            drafter = save_random_model(
                folder / "drafter", vocab_size=options.vocab_size, max_position_embeddings=4096
            )
            for acceptance in options.acceptance:
                share_ms = options.drafter_share * step_ms
                agreement = Agreement(
                    tuple(map(tuple, texts)), acceptance, share_ms, 0.03 * share_ms, options.way_ms
                )
                settings = folder / "agreement.json"
                settings.write_text(json.dumps(asdict(agreement)), "utf-8")
                os.environ[SETTINGS] = str(settings)
                running.service(
                    "speculator",
                    "speculator-0",
                    "tests.bench.agreeing_drafter",
                    model=drafter,
                    kv_blocks=4096,
                    max_sequences=256,
                    metrics_port=0,
                )
                await edge.ready("speculator-0")
                found += await compare(edge, ways, options, acceptance, texts)
                running.end(1)
                await gone(edge)
    return found


async def gone(edge: Edge) -> None:
    """Wait until nobody takes the speculator for alive."""
    await until(lambda: (view := edge.fleet.get("speculator", "speculator-0")) is None or not view.ready)


async def compare(
    edge: Edge, ways: list[Way], options: argparse.Namespace, acceptance: float, texts: list[list[int]]
) -> list[dict[str, object]]:
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    ended: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for _ in range(options.rounds):
        for way in ways:
            before = rounds_of(edge, way.decode)
            one, answers = await run(edge, way, options)
            assert answers == texts, "a draft has changed an answer"
            runs[way.name].append(one)
            for end, count in rounds_of(edge, way.decode).items():
                ended[way.name][end] += count - before.get(end, 0.0)
    off_ms = statistics.median(each.itl_ms for each in runs[OFF])
    rows: list[dict[str, object]] = []
    for way in ways:
        several = runs[way.name]
        itl_ms = statistics.median(each.itl_ms for each in several)
        counts = ended[way.name]
        total = sum(counts[end] for end in ("hit", "missed", "late"))
        rows.append(
            {
                "acceptance": acceptance,
                "way": way.name,
                "itl_ms": round(itl_ms, 1),
                "times": round(off_ms / itl_ms, 2),
                "tokens_per_step": round(
                    statistics.median(each.tokens_per_step for each in runs[way.name]), 2
                ),
                **{end: round(counts[end] / max(1, total), 3) for end in ("hit", "missed", "late")},
                "accepted": round(counts["accepted"] / max(1, counts["proposed"]), 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    parser.add_argument("--fans", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--drafter-share", type=float, default=0.1)
    parser.add_argument("--way-ms", type=float, default=0.0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--map", action="store_true")
    options = parser.parse_args()
    if options.map:
        print_map()
        return
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()
