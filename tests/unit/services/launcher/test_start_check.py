"""What is checked before a start is told to the launcher, from the process that does it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.launcher import start_check
from services.launcher.options import StackOptions, parse_options
from services.launcher.processes.forker import forking_works
from services.launcher.start_check import check_before_start
from shared.errors import InternalError, InvalidRequest, PenstockError, Unavailable
from tests.support.data import REPOSITORY

apart = pytest.mark.parametrize(
    "apart",
    [
        pytest.param(True, marks=pytest.mark.skipif(not forking_works(), reason="another system")),
        False,
    ],
)
forks = pytest.mark.skipif(not forking_works(), reason="another system")


@apart
def test_a_model_that_can_be_served_is_no_trouble(apart: bool) -> None:
    check_before_start(parse_options([], {}), pytest.fail, apart=apart)


@apart
def test_a_model_that_cannot_be_served_is_refused_in_its_words(apart: bool, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=rf"^the model {tmp_path} cannot be served: "):
        check_before_start(parse_options(["--model", str(tmp_path)], {}), print, apart=apart)


@apart
def test_what_is_told_meanwhile_comes_in_its_order(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: StackOptions, tell: Callable[[str], None]) -> None:
        tell("fetching 1\n2")
        tell("fetching ½")
        raise Unavailable("no room")

    monkeypatch.setattr(start_check, "_check", check)
    told: list[str] = []
    with pytest.raises(Unavailable, match="no room"):
        check_before_start(parse_options([], {}), told.append, apart=apart)
    assert told == ["fetching 1\n2", "fetching ½"]


@forks
def test_an_error_of_the_program_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(start_check, "_check", check)
    told: list[str] = []
    with pytest.raises(InternalError, match=r"models could not be checked \(KeyError\)"):
        check_before_start(parse_options([], {}), told.append, apart=True)
    assert "Traceback" in told[0]


@forks
def test_a_process_that_was_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_check, "_check", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(PenstockError, match="was killed by SIGKILL"):
        check_before_start(parse_options([], {}), print, apart=True)


@forks
def test_a_launcher_keeps_nothing_of_the_check() -> None:
    code = (
        "import sys\n"
        "from services.launcher.__main__ import check_before_start, parse_options\n"
        "check_before_start(parse_options([], {}), print)\n"
        "sys.exit('tokenizers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)
