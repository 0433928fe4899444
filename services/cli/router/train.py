"""`penstock router train`: make the classifier that rules of virtual models ask how hard a question is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.arguments import natural
from services.cli.exit_codes import EXIT_FAILED
from services.cli.view.table import table
from shared.errors import PenstockError
from shared.process.cores import usable_cores
from shared.process.quiet_end import interrupts_end_at_once

if TYPE_CHECKING:
    from shared.training.difficulty import HeldOutErrors

WORDS, EMBEDDING = "words", "embedding"
READS = (WORDS, EMBEDDING)


def add_train_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "train",
        help="learn which questions are hard",
        description="Learn from questions which of them are hard, for hard_above and hard_below in the rules "
        "of virtual models, and say how often that is wrong on questions that were held out: by their words "
        "and by their embedding, of which one is written.",
    )
    parser.add_argument(
        "examples", type=Path, metavar="FILE", help='lines of {"text": "…", "label": "hard"} or "easy"'
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="becomes the classifier")
    parser.add_argument(
        "--reads",
        choices=READS,
        default=WORDS,
        help="what it goes by: words, which a gateway reads itself, or the vector that a retriever makes, "
        "which takes milliseconds (default: %(default)s)",
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of which examples are held out")


def train(args: argparse.Namespace) -> int:
    """Write the classifier and print its errors; return the exit code."""
    # The model library takes seconds to import: only for this command, and only now.
    with interrupts_end_at_once():
        from shared.files.difficulty_head import write_difficulty_head  # noqa: PLC0415
        from shared.retrieval.encoders.embedder import MODEL_NAME, Embedder  # noqa: PLC0415
        from shared.training.difficulty import (  # noqa: PLC0415
            cross_validated_errors,
            read_examples,
            train_head,
            train_word_head,
            word_vectors,
        )

    try:
        examples = read_examples(args.examples)
        print(f"embedding {len(examples.texts)} questions with {MODEL_NAME} …", file=sys.stderr, flush=True)
        embedded = Embedder.load(threads=usable_cores()).embed(examples.texts)
        if args.reads == WORDS:
            trained = train_word_head(examples, seed=args.seed)
        else:
            trained = train_head(examples, lambda _: embedded, MODEL_NAME, seed=args.seed)
        write_difficulty_head(args.out, trained.head)
        compared = {
            WORDS: cross_validated_errors(examples, word_vectors(examples.texts)[1], seed=args.seed),
            EMBEDDING: cross_validated_errors(examples, embedded, seed=args.seed),
        }
    except PenstockError as error:
        print(f"penstock router: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"penstock router: {args.out} cannot be written ({error.strerror})", file=sys.stderr)
        return EXIT_FAILED
    print(f"learned from {trained.learned} questions, penalty {trained.penalty:g}; {args.out} is written")
    print(errors_words(trained.held_out))
    print(comparison_words(compared))
    return 0


def errors_words(errors: HeldOutErrors) -> str:
    """Say what the classifier does with questions that it has not learned from."""
    head = ("estimated hard", "questions", "mean estimate", "hard in fact")
    rows = [
        (
            f"{each.low:.1f} to {each.high:.1f}",
            str(each.count),
            f"{each.predicted:.2f}",
            f"{each.observed:.2f}",
        )
        for each in errors.bins
    ]
    return "\n".join(
        [
            f"of {errors.count} questions held out {errors.error:.1%} are told wrong at 0.5 (always saying "
            f"the commoner label: {errors.base_error:.1%})",
            f"area under the ROC curve {errors.area:.3f}, log loss {errors.log_loss:.3f}, calibration error "
            f"{errors.calibration_error:.3f}",
            "",
            table(head, rows),
        ]
    )


def comparison_words(compared: Mapping[str, HeldOutErrors]) -> str:
    """Say how well all questions are told by each of what a classifier may read."""
    head = ("reads", "told wrong", "area", "log loss", "calibration error")
    rows = [
        (
            name,
            f"{errors.error:.1%}",
            f"{errors.area:.3f}",
            f"{errors.log_loss:.3f}",
            f"{errors.calibration_error:.3f}",
        )
        for name, errors in compared.items()
    ]
    return "\n".join(
        ["", "all questions, each by what was learned from others (5 folds):", table(head, rows)]
    )
