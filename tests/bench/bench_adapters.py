"""What LoRA adapters cost: `python -m tests.bench.bench_adapters [--model DIR ...]`.

Decode steps with adapters on all seven matrices against the same steps without, by turns in one process: one
row, eight rows with four adapters between them, eight rows with one. Then the longest of such steps while
adapters are loaded and unloaded beside them, in turns with none. Without --model: random weights in the shape
of SmolLM2-135M and of l100m.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.engine import Engine, EngineConfig
from shared.engine.batch import Batch, Span
from tests.bench.make_model import SHAPES, make_model
from tests.support.adapters import save_adapter
from tests.support.percentile import percentile

CONTEXT_TOKENS = 128  # of every row
BLOCKS_EACH = CONTEXT_TOKENS // 16
ADAPTERS = 4
SMOLLM2 = {
    **SHAPES["l100m"],
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
CASES: dict[str, list[int | None]] = {
    "1 row": [None],
    "1 row, adapted": [0],
    "8 rows": [None] * 8,
    "8 rows, 4 adapters": [row % ADAPTERS for row in range(8)],
    "8 rows, 1 adapter": [0] * 8,
}


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        models = options.model or list(_random_models(Path(scratch)))
        for model in models:
            for label, fields in FORMATS.items():
                config = EngineConfig(
                    str(model), dtype="bfloat16", threads=options.threads, **fields, kv_blocks=8 * BLOCKS_EACH
                )
                engine = Engine(config)
                folders = _adapters(engine, options.rank, Path(scratch))
                _measure(f"{model.name}, {label}", engine, folders, options)
                engine.close()


def _measure(title: str, engine: Engine, folders: Sequence[Path], options: argparse.Namespace) -> None:
    batches = {name: _decode_rows(engine, rows) for name, rows in CASES.items()}
    times_ms: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.rounds):
        for name, batch in batches.items():
            times_ms[name].append(_time_ms(engine, batch))
    print(f"\n{title}, rank {options.rank}, {options.threads} threads")
    for name, base in (
        ("1 row, adapted", "1 row"),
        ("8 rows, 4 adapters", "8 rows"),
        ("8 rows, 1 adapter", "8 rows"),
    ):
        ratios = [mine / plain for mine, plain in zip(times_ms[name], times_ms[base], strict=True)]
        medians = [statistics.median(times_ms[each]) for each in (base, name)]
        print(
            f"  {name:20} {medians[0]:7.2f} -> {medians[1]:7.2f} ms, "
            f"median of pairs {statistics.median(ratios) - 1:+.1%}",
            flush=True,
        )
    batch = batches["8 rows, 4 adapters"]
    quiet: list[float] = []
    busy: list[float] = []
    loads = 0
    for _ in range(options.rounds // 20 + 1):
        quiet += [_time_ms(engine, batch) for _ in range(20)]
        with _loading(engine, folders[0]) as count:
            busy += [_time_ms(engine, batch) for _ in range(20)]
        loads += len(count)
    print(
        f"  steps alone: median {statistics.median(quiet):.2f}, p99 {percentile(quiet, 0.99):.2f} ms; beside "
        f"{loads} loads: median {statistics.median(busy):.2f}, p99 {percentile(busy, 0.99):.2f} ms",
        flush=True,
    )


def _decode_rows(engine: Engine, rows: Sequence[int | None]) -> Batch:
    """One row for each, the last of CONTEXT_TOKENS."""
    spans = []
    for number, adapter in enumerate(rows):
        blocks = range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH)
        loaded = None if adapter is None else engine._adapters.find(f"a{adapter}")
        packed = None if loaded is None else loaded.packed
        engine._model.forward(
            Batch(range(CONTEXT_TOKENS), [Span(0, CONTEXT_TOKENS, [blocks], packed)], [CONTEXT_TOKENS - 1])
        )
        spans.append(Span(CONTEXT_TOKENS - 1, 1, [blocks], packed))
    return Batch([7] * len(rows), spans, range(len(rows)))


def _time_ms(engine: Engine, batch: Batch) -> float:
    began = time.perf_counter()
    engine._model.forward(batch)
    return 1000 * (time.perf_counter() - began)


@contextmanager
def _loading(engine: Engine, folder: Path) -> Iterator[list[int]]:
    """Loads and unloads as fast as it goes; the list grows by each."""
    done = threading.Event()
    loads: list[int] = []

    def come_and_go() -> None:
        while not done.is_set():
            loads.append(engine.load_adapter("comes", str(folder)).nbytes)
            engine.unload_adapter("comes")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield loads
    finally:
        done.set()
        thread.join()


def _adapters(engine: Engine, rank: int, scratch: Path) -> list[Path]:
    folders = []
    for number in range(ADAPTERS):
        folder = scratch / f"{engine.model_config.hidden_size}-{rank}-{number}"
        if not folder.is_dir():
            save_adapter(folder, engine.model_config, seed=number, rank=rank)
        engine.load_adapter(f"a{number}", str(folder))
        folders.append(folder)
    return folders


def _random_models(scratch: Path) -> Iterator[Path]:
    for name, shape in (("SmolLM2-135M's shape", SMOLLM2), ("l100m", SHAPES["l100m"])):
        make_model(shape, scratch / name, ["no text is read here"])
        yield scratch / name


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, action="append", metavar="DIR", help="with the names of Llama")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
