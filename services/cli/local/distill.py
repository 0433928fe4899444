"""`penstock distill`: make a draft model, or a draft head, for a target of your own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.arguments import finite, natural
from services.cli.exit_codes import EXIT_USAGE
from shared.errors import PenstockError
from shared.process.cores import usable_cores
from shared.process.quiet_end import interrupts_end_at_once
from shared.telemetry import logging

MAX_MINUTES = 1_000_000.0


def build_distill_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock distill",
        description="Make a draft model, or a draft head, for a target: it learns from answers that the "
        "target generates, and its README.md says how often it is right and whether it pays on this machine. "
        "Ended at any moment, the same command goes on where it was; with more --minutes it learns on; "
        "with --minutes 0 it is only measured. Exit code 2 for bad input.",
    )
    parser.add_argument("--model", required=True, type=Path, metavar="DIR|FILE", help="the target")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="becomes the draft's directory"
    )
    parser.add_argument(
        "--kind",
        choices=("draft", "head"),
        default="draft",
        help="a model of its own, or a small head that drafts from the target's hidden states; default draft",
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=60.0, metavar="M", help="of all runs together; default 60"
    )
    parser.add_argument(
        "--layers", type=natural, default=0, metavar="N", help="default: a tenth of the target's; 1 of a head"
    )
    parser.add_argument(
        "--hidden", type=natural, default=0, metavar="N", help="default: as wide as the target"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE|DIR",
        help="prompts (.jsonl) or texts (.txt, .md) like those it is for; default: the target asks itself",
    )
    parser.add_argument(
        "--check",
        type=Path,
        action="append",
        default=[],
        metavar="FILE|DIR",
        help="prompts to measure with, again for more; default: a tenth of --data, which is not learned from",
    )
    parser.add_argument(
        "--temperatures", type=_temperatures, default=(0.0, 0.7, 1.0), metavar="T,…", help="default 0,0.7,1"
    )
    parser.add_argument(
        "--quant", choices=("none", "int8", "int4"), default="none", help="of both models' weights, as served"
    )
    parser.add_argument(
        "--threads", type=_positive_count, default=usable_cores(), metavar="N", help="default: all cores"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N")
    parser.add_argument(
        "--begin-with",
        type=Path,
        metavar="DIR",
        help="with --kind head: a head of this target and size, as the one that ships, which learns on",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """0 when the draft is there and measured, 2 for bad input."""
    parser = build_distill_parser()
    args = parser.parse_args(argv)
    if args.begin_with is not None and args.kind != "head":
        parser.error("--begin-with names a draft head; give --kind head with it, or leave it out")
    logging.configure("warning", "cli", "cli")
    # Torch takes seconds to import: only for this command, and only now.
    with interrupts_end_at_once():
        from shared.training.distillation import DistillOptions  # noqa: PLC0415
        from shared.training.draft_distillation import distil_draft  # noqa: PLC0415
        from shared.training.heads.head_distillation import distil_head  # noqa: PLC0415

    make = distil_head if args.kind == "head" else distil_draft
    options = DistillOptions(
        model=args.model,
        out=args.out,
        minutes=args.minutes,
        layers=args.layers,
        hidden=args.hidden,
        data=args.data,
        check=tuple(args.check),
        temperatures=args.temperatures,
        quantization=args.quant,
        threads=args.threads,
        seed=args.seed,
        begin_with=args.begin_with,
    )
    try:
        pays = make(options, lambda line: print(line, flush=True))
    except PenstockError as error:
        print(f"penstock distill: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"penstock distill: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    print(_closing(args, pays=pays))
    return 0


def _closing(args: argparse.Namespace, *, pays: bool) -> str:
    """Say how to serve what was made, or without it."""
    serving = f"penstock up --model {args.model}"
    if args.kind == "head":
        use = f'{serving} with draft_head = "{args.out}" under [decode] in the settings'
        without = f"{serving} without draft_head"
    else:
        use, without = f"{serving} --draft {args.out}", f"{serving} --draft none"
    if pays:
        return f"wrote {args.out}; try it: {use}"
    return (
        f"wrote {args.out}, which does not pay here: the same command with more --minutes learns on; "
        f"until then serve without it, as in {without}"
    )


def _minutes(text: str) -> float:
    value = finite(text)
    if not 0 <= value <= MAX_MINUTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes from 0 to {MAX_MINUTES:g}")
    return value


def _temperatures(text: str) -> tuple[float, ...]:
    values = tuple(finite(part.strip()) for part in text.split(","))
    if not all(value == 0 or 0.01 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of temperatures, each 0 or from 0.01 to 100"
        )
    return values


def _positive_count(text: str) -> int:
    value = natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value
