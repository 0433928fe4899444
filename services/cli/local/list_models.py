"""`penstock list`: the models that are kept here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from services.cli.exit_codes import EXIT_FAILED
from services.cli.local.kept_rows import HEAD, described, row_of
from services.cli.view.table import table
from services.cli.view.terminal_text import text_sink
from shared.errors import InvalidRequest
from shared.files.model_store import KeptModel, find_kept, kept_names


def build_list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock list",
        description="List the models that `penstock pull` has kept. Exit code 1 where one cannot be read.",
    )
    parser.add_argument("--json", action="store_true", help="as an object")
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_list_parser().parse_args(argv)
    models: list[KeptModel] = []
    code = 0
    for name in kept_names():
        try:
            model = find_kept(name)
        except InvalidRequest as error:
            print(f"penstock list: {error.message}", file=text_sink(sys.stderr))
            code = EXIT_FAILED
        else:
            models += [model] if model is not None else []
    if args.json:
        print(json.dumps({"models": [described(model) for model in models]}))
    elif models:
        print(table(HEAD, [row_of(model) for model in models]))
    else:
        print("no model is kept; `penstock pull ORG/NAME`, of the hub, or `penstock pull DIR|FILE` keeps one")
    return code
