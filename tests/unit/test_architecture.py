"""ARCHITECTURE.md and the walk of a request name files and functions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "ARCHITECTURE.md").read_text()
WALK = re.sub(r"\s+", " ", (REPOSITORY / "services" / "WALK.md").read_text())
TEXT = re.sub(r"\s+", " ", PAGE) + WALK
MAX_WORDS = 30

PATHS = sorted(set(re.findall(r"`((?:services|shared|protos|tests)/[\w./]*)`", TEXT)))
"""Every file and folder that is named by its path; `<role>` and the like stand for several."""
PLACES = re.findall(r"`([\w/]+\.py)` `(\w+(?:\.\w+)?)`", TEXT)
"""The name right behind a file is defined in it."""


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


@cache
def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and the methods of its classes as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {
                f"{node.name}.{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def test_every_path_exists() -> None:
    assert [path for path in PATHS if not (REPOSITORY / path).exists()] == []


def test_every_place_on_the_walk_is_where_it_says() -> None:
    assert [(path, name) for path, name in PLACES if name not in defined(REPOSITORY / path)] == []


def test_the_walk_names_places_in_every_service_that_a_request_meets() -> None:
    places = {
        path.split("/")[1] for path, _ in re.findall(r"`(services/[\w/]+\.py)` `(\w+(?:\.\w+)?)`", WALK)
    }
    services = {path.parent.name for path in REPOSITORY.glob("services/*/config.py")}
    assert places == services


def test_the_map_names_every_package() -> None:
    listed = section("The map")
    packages = [path.parent for path in REPOSITORY.glob("s*/*/__init__.py")]
    missing = [package.name for package in packages if f"{package.parent.name}/{package.name}/" not in listed]
    assert packages
    assert missing == []


def test_the_glossary_is_short_and_says_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", section("Words"), re.MULTILINE)[1:]
    words = [word for row in rows for word in row.split(", ")]
    assert 0 < len(rows) <= MAX_WORDS
    assert len(set(words)) == len(words)
