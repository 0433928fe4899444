"""`penstock pull`: keep a model of the hub, of a folder or of a GGUF file under a name."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.exit_codes import EXIT_FAILED
from services.cli.local.kept_rows import described, served_from, size_words
from services.cli.local.pull_line import PullLine
from services.cli.view.terminal_text import text_sink
from shared.errors import InvalidRequest, PenstockError
from shared.files.model_store import KeptModel
from shared.models.model_facts import read_model_facts
from shared.models.pulling import pull_from_disk, pull_from_hub
from shared.text.model_source import ModelSource, called

_PATH_STARTS = ("/", ".", "~")


def build_pull_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock pull",
        description="Fetch a model of the hub, ORG/NAME or ORG/NAME@REVISION, or copy a folder or a GGUF "
        "file. "
        "`penstock up --model` takes its name from then on. What is cut off goes on where it was; a model is "
        "seen when all of it is there and has been checked.",
    )
    parser.add_argument("model", metavar="ORG/NAME|DIR|FILE", help="what to keep")
    parser.add_argument("--name", help="name of a folder or a file (default: what it is called)")
    parser.add_argument("--file", default="", help="the GGUF file that is meant, where there are several")
    parser.add_argument("--json", action="store_true", help="say what is kept as an object")
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_pull_parser()
    args = parser.parse_args(argv)
    err = text_sink(sys.stderr)
    line = PullLine(sys.stderr, redraws=sys.stderr.isatty())
    try:
        model = _pull(args, line)
        facts = read_model_facts(ModelSource(model.folder, model.name))
    except PenstockError as error:
        line.end()
        print(f"penstock pull: {error.message}", file=err)
        return EXIT_FAILED
    except OSError as error:
        line.end()
        print(f"penstock pull: {error.filename or args.model}: {error.strerror or error}", file=err)
        return EXIT_FAILED
    finally:
        line.end()
    if facts.trouble:
        print(f"penstock pull: {model.name} is kept, and cannot be served: {facts.trouble}", file=err)
    if args.json:
        print(json.dumps(described(model)))
    else:
        print(
            f"{model.name}: {size_words(model.size_bytes)}, {model.quantization}, sha256 {model.digest[:16]}"
        )
    return 0


def _pull(args: argparse.Namespace, line: PullLine) -> KeptModel:
    path = Path(args.model).expanduser()
    if path.exists():
        name = args.name or called(args.model)
        _check_unserved(name)
        return pull_from_disk(path, name, line.show, args.file)
    if args.model.startswith(_PATH_STARTS):
        raise InvalidRequest(f"{args.model!r} is not there: give a model's folder or a GGUF file")
    if args.name:
        raise InvalidRequest(f"--name is for folders and files; a model of the hub is kept as {args.model!r}")
    _check_unserved(args.model)
    return pull_from_hub(args.model, line.show, args.file)


def _check_unserved(name: str) -> None:
    """Raise InvalidRequest for a model that a running stack serves: another one would take its place."""
    serving = served_from(name)
    if serving:
        raise InvalidRequest(
            f"{name} is served by the stack of {serving}; `penstock down` first, then pull it"
        )
