"""Workers of `pytest -n` tell of what passes once, and all of what does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.data import REPOSITORY
from tests.support.short_reports import is_unsaid, wants_all, without_unsaid

TIMEOUT_S = 120
CONFTEST = """
import pytest
from tests.support.short_reports import shorten_reports

def pytest_configure(config):
    shorten_reports(config)

def pytest_runtest_logreport(report):
    if hasattr(report, "node"):  # in the process that the workers tell
        print("told of", report.nodeid.partition("::")[2], report.when, report.outcome)
"""
TESTS = """
import pytest

@pytest.fixture
def fails_at_the_end():
    yield
    raise ValueError("at the end")

@pytest.fixture
def fails_at_once():
    raise ValueError("at once")

def test_passes(): pass
def test_fails(): raise ValueError("between")
def test_ends(fails_at_the_end): pass
def test_begins(fails_at_once): pass
def test_prints(): print("a word")
@pytest.mark.skip
def test_skips(): pass
"""
OF_SIX = [
    *("test_begins setup failed", "test_ends call passed", "test_ends teardown failed"),
    *("test_fails call failed", "test_passes call passed", "test_prints call passed"),
    "test_skips setup skipped",
]


def test_set_ups_and_ends_that_passed_are_unsaid_and_all_tests_are_counted(tmp_path: Path) -> None:
    for name, text in (("conftest.py", CONFTEST), ("test_six.py", TESTS), ("pytest.ini", "[pytest]\n")):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "xdist.plugin", "-n", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert sorted(re.findall(r"told of (\w+ \w+ \w+)", done.stdout)) == OF_SIX, done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 failed, 3 passed, 1 skipped, 2 errors in")


@pytest.mark.parametrize(
    ("options", "all_told"),
    [
        ({"durations": None, "xmlpath": None}, False),
        ({"durations": 0, "xmlpath": None}, True),
        ({"durations": None, "xmlpath": "told.xml"}, True),
        ({}, False),
    ],
)
def test_who_lists_them_is_told_of_all(options: dict[str, Any], all_told: bool) -> None:
    config = SimpleNamespace(getoption=options.get)
    assert wants_all(config) is all_told  # type: ignore[arg-type]


def report(**said: Any) -> pytest.TestReport:
    usual: dict[str, Any] = {"nodeid": "a", "location": ("a", 1, "a"), "keywords": {}, "longrepr": None}
    return pytest.TestReport(**{**usual, "outcome": "passed", "when": "teardown", **said})


@pytest.mark.parametrize(
    ("said", "unsaid"),
    [
        ({}, True),
        ({"when": "setup"}, True),
        ({"when": "call"}, False),
        ({"outcome": "failed"}, False),
        ({"outcome": "skipped"}, False),
        ({"sections": [("Captured stdout call", "a word")]}, False),
        ({"user_properties": [("a", 1)]}, False),
    ],
)
def test_only_what_passed_without_a_word_is_unsaid(said: dict[str, Any], unsaid: bool) -> None:
    assert is_unsaid(report(**said)) is unsaid


def test_events_of_other_kinds_are_sent() -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    send = without_unsaid(lambda name, **told: sent.append((name, told)))
    send("testreport", data={"unsaid": True, "item_index": 1})
    send("testreport", data={"nodeid": "a"})
    send("logstart", nodeid="a")
    assert sent == [("testreport", {"data": {"nodeid": "a"}}), ("logstart", {"nodeid": "a"})]
