"""`penstock bench engine`: the engine's speed and memory, and their share of what this machine can do."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from services.cli.arguments import natural
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.launcher_process import ROOT
from services.cli.view.table import table
from shared.process.cores import usable_cores

CASE_DEADLINE_S = 3600.0

COLUMNS = {  # figure: digits after the point
    "batch": 0,
    "prefill_tokens_per_s": 1,
    "decode_tokens_per_s": 1,
    "step_ms": 2,
    "overhead_ms": 3,
    "bandwidth_share": 3,
    "flop_share": 3,
    "decode_flop_share": 3,
    "peak_rss_mb": 0,
}
NOTES = """\
prefill: one prompt alone, from admission to first token; decode: every sequence of the batch decoding, the
prompts computed before and not timed. Rates are medians of {repeats} repeats after a warm-up, step_ms and
overhead_ms medians of all steps. bandwidth_share: weights and KV that a decode step reads, of
{limit_gb_per_s:.1f} GB/s; flop_share: prefill's operations, decode_flop_share: a decode step's, of
{limit_gop_per_s:.0f} G/s. The limits are the best measured in the same run. Each batch had a process of its
own; {weight_mb:.0f} MB of its peak are weights."""


class MeasureError(Exception):
    """One batch could not be measured; `code` is the exit code that tells why."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def main(argv: Sequence[str]) -> int:
    """0 when every batch was measured, 2 for a request that cannot be, 1 for a measurement that broke."""
    args = build_bench_engine_parser().parse_args(argv)
    try:
        rows = _with_shares([_measure(_case(args, batch)) for batch in args.batch])
    except MeasureError as error:
        print(f"penstock bench engine: {error}", file=sys.stderr)
        return error.code
    print(json.dumps(_described(args, rows), indent=2) if args.json else _shown(args, rows))
    return 0


def build_bench_engine_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench engine",
        description="Measure the engine in process: a row for each batch. Exit code 2 for bad input.",
    )
    parser.add_argument(
        "--model", required=True, metavar="DIR|FILE", help="Hugging Face model directory or GGUF file"
    )
    parser.add_argument("--prompt-tokens", type=_positive, default=512, metavar="N")
    parser.add_argument(
        "--output-tokens", type=_positive, default=64, metavar="N", help="of each sequence, 2 or more"
    )
    parser.add_argument("--batch", type=_batches, default=[1, 8, 32], metavar="N,…", help="default 1,8,32")
    parser.add_argument("--repeats", type=_positive, default=3, metavar="N", help="default 3")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), help="default: the checkpoint's")
    parser.add_argument("--quant", choices=("none", "dense", "int8", "int4"), help="of the weights")
    parser.add_argument("--kv-dtype", choices=("auto", "int8", "fp8"), help="of the KV")
    parser.add_argument(
        "--threads", type=_positive, default=usable_cores(), metavar="N", help="default: all cores"
    )
    parser.add_argument("--backend", choices=("auto", "native", "torch"), help="what computes the model")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument(
        "--deterministic", action="store_true", default=None, help="the engine's deterministic mode"
    )
    parser.add_argument(
        "--max-batch-tokens", type=_positive, metavar="N", help="rows of one step, the prefill chunk"
    )
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    return parser


def _case(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    engine = {
        "model_dir": args.model,
        "threads": args.threads,
        "dtype": args.dtype,
        "quantization": args.quant,
        "kv_dtype": args.kv_dtype,
        "backend": args.backend,
        "device": args.device,
        "deterministic": args.deterministic,
        "max_batch_tokens": args.max_batch_tokens,
    }
    return {
        "engine": {name: value for name, value in engine.items() if value is not None},
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "batch": batch,
        "repeats": args.repeats,
    }


def _measure(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of one case, from a process of its own: its peak memory is nobody else's."""
    # -P and the path: a folder named "shared" in the current directory must not shadow ours.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "shared.engine.measuring.benchmark"],
            input=json.dumps(case),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=CASE_DEADLINE_S,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C reaches this process alone, which kills that one
        )
    except subprocess.TimeoutExpired as error:
        sentence = f"batch {case['batch']} took longer than {CASE_DEADLINE_S:.0f} s; ask for fewer tokens"
        raise MeasureError(sentence, EXIT_FAILED) from error
    if done.returncode == EXIT_USAGE and done.stdout:
        raise MeasureError(json.loads(done.stdout)["error"], EXIT_USAGE)
    if done.returncode:
        sentence = (
            f"the process that measured batch {case['batch']} ended with code {done.returncode}; see above"
        )
        raise MeasureError(sentence, EXIT_FAILED)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _with_shares(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares of the best limits that any row found: one disturbed reading must not flatter its row."""
    memory, matmul = (max(row[name] for row in rows) for name in ("limit_gb_per_s", "limit_gop_per_s"))
    return [
        {
            **row,
            "bandwidth_share": row["decode_gb_per_s"] / memory,
            "flop_share": row["prefill_gop_per_s"] / matmul,
            "decode_flop_share": row["decode_gop_per_s"] / matmul,
        }
        for row in rows
    ]


def _described(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    case = _case(args, 0)
    return {"engine": case["engine"], "repeats": args.repeats, "rows": rows}


def _shown(args: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    cells = [tuple(f"{row[name]:.{digits}f}" for name, digits in COLUMNS.items()) for row in rows]
    limits = {
        name: max(row[name] for row in rows) for name in ("limit_gb_per_s", "limit_gop_per_s", "weight_mb")
    }
    return f"{table(tuple(COLUMNS), cells)}\n\n{NOTES.format(repeats=args.repeats, **limits)}"


def _positive(text: str) -> int:
    value = natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def _batches(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",")]
