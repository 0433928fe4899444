"""The commands on the pages are ones that there are, with options that they take."""

from __future__ import annotations

import importlib
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from services.cli.__main__ import COMMANDS, MODULES
from services.launcher.up_arguments import build_up_parser
from tests.support.data import REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "services" / "gateway" / "FLAGS.md",
    *(REPOSITORY / "services").glob("**/README.md"),
]
COMMAND = re.compile(r"^(?:.*\| )?\.venv/bin/penstock (.*)$", re.MULTILINE)


def commands(page: Path) -> list[tuple[str, ...]]:
    lines = [shlex.split(line, comments=True) for line in COMMAND.findall(page.read_text())]
    return [tuple(words) for words in lines if words[0] not in ("config", "bench")]


def parser_of(command: str) -> ArgumentParser:
    if command == "up":
        return build_up_parser()
    module = importlib.import_module(f"services.cli.{MODULES[command]}")
    name = "ask.ask_request" if command == "ask" else ""
    module = importlib.import_module(f"services.cli.{name}") if name else module
    parser: ArgumentParser = getattr(module, f"build_{command}_parser")()
    return parser


@pytest.mark.parametrize("words", sorted({words for page in PAGES for words in commands(page)}), ids=" ".join)
def test_a_command_of_a_page_is_understood(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.toml").write_text("output_per_million = 2\n")
    monkeypatch.chdir(tmp_path)
    parser_of(words[0]).parse_args(words[1:])


def test_the_page_of_the_command_line_has_what_looks_after_a_stack() -> None:
    shown = {words[0] for words in commands(REPOSITORY / "services" / "cli" / "README.md")}
    looks_after = {"up", "down", "logs", "restart", "drain", "status", "audit", "why"}
    assert looks_after <= set(COMMANDS)
    assert looks_after <= shown
