"""Penstock's engine beside others, in one run: prefill and decode of the same checkpoints, in turns.

    python -m tests.bench.bench_engine --models DIR --peer-venv openvino=DIR … [--shapes q05b]

Prints Markdown tables. How the peers are set up and how each one is measured: README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from shared.engine.measuring.limits import measure_limits
from tests.bench.bench_engine_contenders import (
    GGUF_FILES,
    KINDS,
    Column,
    Contender,
    ContenderError,
    Kind,
    is_measured,
)
from tests.bench.bench_engine_table import OURS, Series, markdown
from tests.bench.make_model import SHAPES

EXIT_ENDED = 1
WARM_UP_STEPS = 2
WARM_UP_PROMPT_TOKENS = 16


def columns_of(options: argparse.Namespace) -> list[Column]:
    prefills = [Column(1, tokens, 0) for tokens in options.prefill]
    return prefills + [Column(batch, options.prompt_tokens, options.steps) for batch in options.decode]


def warm_up(contender: Contender, columns: list[Column]) -> None:
    """Whatever is compiled or allocated at a first call is so before anything is timed."""
    if contender.compiles:
        for column in columns:
            prompt = (
                min(column.prompt_tokens, WARM_UP_PROMPT_TOKENS) if column.steps else column.prompt_tokens
            )
            contender.tokens_per_s(Column(column.batch, prompt, min(column.steps, WARM_UP_STEPS)))


def load(
    stack: ExitStack, kind: Kind, shape: str, columns: list[Column], options: argparse.Namespace
) -> Contender | None:
    """None, and a line that says why, for one that cannot be measured here."""
    python = (
        Path(sys.executable) if kind.engine == OURS else options.peer_venv[kind.engine] / "bin" / "python"
    )
    log = options.logs / f"{shape}-{kind.name}.log"
    began = time.perf_counter()
    try:
        model = options.models / kind.model.format(shape=shape)
        contender = stack.enter_context(Contender(kind, python, model, columns, options.threads, log))
        warm_up(contender, columns)
    except ContenderError as error:
        note(f"left out: {error}")
        return None
    note(f"{shape} {kind.name}: {contender.version}, ready in {time.perf_counter() - began:.0f} s")
    return contender


def measure_shape(shape: str, options: argparse.Namespace) -> list[Series]:
    """All contenders stay loaded; each round of a column goes through all of them: they share its noise."""
    columns = columns_of(options)
    with ExitStack() as stack:
        kinds = [kind for kind in options.kinds if is_measured(kind, shape)]
        loaded = [load(stack, kind, shape, columns, options) for kind in kinds]
        contenders = [contender for contender in loaded if contender is not None]
        rates: dict[str, dict[str, list[float]]] = {
            contender.kind.name: {column.name: [] for column in columns} for contender in contenders
        }
        for column in columns:
            for _ in range(options.rounds):
                for contender in tuple(contenders):
                    try:
                        rates[contender.kind.name][column.name].append(contender.tokens_per_s(column))
                    except ContenderError as error:
                        note(f"no longer measured: {error}")
                        contenders.remove(contender)
            shown = ", ".join(
                f"{name} {max(rate[column.name], default=0):.0f}" for name, rate in rates.items()
            )
            note(f"{shape} {column.name}: {shown}")
        return [
            Series(
                contender.kind.name,
                contender.kind.engine,
                contender.kind.precision,
                contender.version,
                contender.peak_rss_mb,
                rates[contender.kind.name],
            )
            for contender in loaded
            if contender is not None
        ]


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", type=Path, required=True, help="where SHAPE, SHAPE-q8_0.gguf, …, smollm2.gguf are"
    )
    parser.add_argument(
        "--peer-venv",
        type=_named_path,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="environment of openvino, llama_cpp, vllm or transformers; without it that peer is left out",
    )
    shapes = [*sorted(SHAPES), *GGUF_FILES]
    parser.add_argument("--shapes", type=_names, default=shapes, metavar="NAME,…")
    parser.add_argument(
        "--only", type=_names, metavar="NAME,…", help=f"of {', '.join(k.name for k in KINDS)}"
    )
    parser.add_argument("--prefill", type=_numbers, default=[512, 2048], metavar="N,…", help="prompt lengths")
    parser.add_argument("--decode", type=_numbers, default=[1, 8, 32], metavar="N,…", help="batch sizes")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="of every sequence that decodes")
    parser.add_argument("--steps", type=int, default=32, help="decode steps that are timed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--logs", type=Path, default=Path("/tmp/penstock-bench-logs"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="all readings, too")
    options = parser.parse_args()
    options.peer_venv = dict(options.peer_venv)
    here = {OURS, *options.peer_venv}
    options.kinds = [k for k in KINDS if k.engine in here and (not options.only or k.name in options.only)]
    if unknown := set(options.shapes) - set(shapes):
        parser.error(f"no such shape: {', '.join(sorted(unknown))}")
    if unknown := here - {kind.engine for kind in KINDS}:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    if not options.kinds:
        parser.error("nothing is left to measure: see --only and --peer-venv")
    return options


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")] if text else []


def _named_path(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR")
    return name, Path(path).absolute()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_ENDED))  # the engines are stopped: end them, too
    options.logs.mkdir(parents=True, exist_ok=True)
    limits = [measure_limits(options.threads)]
    results = {shape: measure_shape(shape, options) for shape in options.shapes}
    limits.append(measure_limits(options.threads))
    read = max(one.read_bytes_per_s for one in limits) / 1e9
    matmul = ", ".join(
        f"{name} {max(one.operations_per_s[name] for one in limits) / 1e9:.0f}"
        for name in limits[0].operations_per_s
    )
    columns = [column.name for column in columns_of(options)]
    for shape, series in results.items():
        print(markdown(shape, columns, series), end="\n\n")
    print(
        f"{time.strftime('%Y-%m-%d')}, {cpu_name()}, {options.threads} threads. Limits in this run: "
        f"{read:.1f} GB/s read; {matmul} G operations/s. Decode: prompts of {options.prompt_tokens} tokens, "
        f"{options.steps} timed steps; {options.rounds} rounds."
    )
    print(
        "; ".join(
            sorted({one.version for series in results.values() for one in series if one.engine != OURS})
        )
        + "."
    )
    if options.json is not None:
        report = {
            "limits": [asdict(one) for one in limits],
            "shapes": {shape: [asdict(one) for one in series] for shape, series in results.items()},
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
