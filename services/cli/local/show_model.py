"""`penstock show`: what a model is, before anybody serves it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.cli.exit_codes import EXIT_FAILED
from services.cli.local.kept_rows import described, size_words
from services.cli.view.terminal_text import text_sink
from shared.errors import NotFound, PenstockError
from shared.files.model_store import KeptModel, check_kept_name, find_kept
from shared.models.model_facts import ModelFacts, read_model_facts
from shared.text.model_source import ModelSource, resolve_model


def build_show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock show",
        description="Show what a model is: one that is kept, or a folder or a GGUF file. Nothing is fetched.",
    )
    parser.add_argument("model", metavar="NAME|DIR|FILE", help="which")
    parser.add_argument("--json", action="store_true", help="as an object")
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_show_parser().parse_args(argv)
    try:
        kept, source = _found(args.model)
        told = _told(kept, source, read_model_facts(source))
    except PenstockError as error:
        print(f"penstock show: {error.message}", file=text_sink(sys.stderr))
        return EXIT_FAILED
    except OSError as error:
        print(f"penstock show: {error.filename}: {error.strerror or error}", file=text_sink(sys.stderr))
        return EXIT_FAILED
    print(json.dumps(told) if args.json else "\n".join(_lines(told)), file=text_sink(sys.stdout))
    return 0


def _found(name: str) -> tuple[KeptModel | None, ModelSource]:
    if Path(name).expanduser().exists():
        return None, resolve_model(name)
    check_kept_name(name)
    kept = find_kept(name)
    if kept is None:
        raise NotFound(f"no model {name} is kept; `penstock list` shows those that are")
    return kept, resolve_model(name)


def _told(kept: KeptModel | None, source: ModelSource, facts: ModelFacts) -> Mapping[str, Any]:
    about = dict(described(kept)) if kept is not None else {"name": source.name, "path": str(source.path)}
    return about | {
        "format": facts.model_format,
        "quantization": facts.quantization,
        "architecture": facts.architecture,
        "parameters": facts.parameters,
        "layers": facts.layers,
        "context_tokens": facts.context_tokens,
        "tokenizer_ids": facts.vocab_tokens,
        "chat_template": facts.has_chat_template,
        "tool_format": facts.tool_format,
        "default_sampling": {
            each.name: {"value": each.shown, "source": each.source} for each in facts.default_sampling
        },
        "licence": facts.licence,
        "trouble": facts.trouble,
    }


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    for name, value in told.items():
        if name == "size_bytes":
            shown = size_words(value)
        elif name == "default_sampling":
            held = (f"{key} {each['value']} ({each['source']})" for key, each in value.items())
            shown = ", ".join(held) or "what is built in"
        elif isinstance(value, bool):
            shown = "yes" if value else "no"
        else:
            shown = f"{value:,}" if isinstance(value, int) and value else str(value or "-")
        if name != "trouble" or value:
            yield f"{name.removesuffix('_bytes').replace('_', ' '):17} {shown}"
