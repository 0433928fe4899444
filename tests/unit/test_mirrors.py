"""Every module has a test of its own, or the page of the tests names what holds its package."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.data import REPOSITORY

TESTS = REPOSITORY / "tests"
ROW = re.compile(r"^\| `((?:services|shared)/[\w/]+|services/\w+)` \| (.+) \|$", re.MULTILINE)


@cache
def held() -> dict[str, list[str]]:
    """Package -> the tests that the page names for it."""
    page = (TESTS / "README.md").read_text("utf-8")
    return {package: re.findall(r"`([^`]+)`", tests) for package, tests in ROW.findall(page)}


def modules() -> set[Path]:
    found = (path for root in ("services", "shared") for path in (REPOSITORY / root).rglob("*.py"))
    return {path.relative_to(REPOSITORY) for path in found if not path.name.startswith("_")}


def imported(test: Path) -> set[str]:
    """Return the dotted names that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(test.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def directly_tested() -> set[Path]:
    tests = list(TESTS.rglob("*.py"))
    mirrored = {test.name.removeprefix("test_") for test in tests if test.name.startswith("test_")}
    names = set().union(*map(imported, tests))
    return {
        module
        for module in modules()
        if module.name in mirrored or ".".join(module.with_suffix("").parts) in names
    }


def test_every_module_has_a_test_or_its_package_says_what_holds_it() -> None:
    packages = {Path(package) for package in held()}
    left = {module for module in modules() - directly_tested() if packages.isdisjoint(module.parents)}
    assert sorted(map(str, left)) == []


def test_every_row_is_needed_and_names_tests_that_exist() -> None:
    assert [test for tests in held().values() for test in tests if not (TESTS / test).is_file()] == []
    parents = {parent for module in modules() - directly_tested() for parent in module.parents}
    assert [package for package in held() if Path(package) not in parents] == []
