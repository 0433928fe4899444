"""`penstock completion` in real shells: what it offers for a line that somebody has typed so far."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from services.cli.__main__ import COMMANDS
from services.cli.completion import SHELLS
from tests.support.data import REPOSITORY
from tests.support.terminal import Terminal

TIMEOUT_S = 60
OFFER = """\
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
_shtab_penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@cache
def script(shell: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "completion", shell],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    ).stdout


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "penstock"
    file.write_text(script("bash"))
    return file


def offered(bash_script: Path, *words: str, folder: Path = REPOSITORY) -> set[str]:
    typed = " ".join(shlex.quote(word) for word in ("penstock", *words))
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {bash_script}\n{OFFER.format(words=typed)}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


CASES = [
    (("st",), "status"),
    (("ask", "--temp"), "--temperature"),
    (("up", "--deco"), "--decode"),
    (("keys", "new", "--ten"), "--tenant"),
    (("bench", "engine", "--quan"), "--quant"),
    (("bench", "serve", "--conc"), "--concurrency"),
    (("capacity", "plan", "--reg"), "--regions"),
    (("ask", "hi", "--priority", "h"), "high"),
]
"""The typed line, and the one word that it may become."""


@needs("bash")
def test_the_commands_are_offered(bash_script: Path) -> None:
    assert set(COMMANDS) <= offered(bash_script, "")
    assert offered(bash_script, "st") == {"status"}


@needs("bash")
@pytest.mark.parametrize(("words", "whole"), CASES)
def test_bash_completes(bash_script: Path, words: tuple[str, ...], whole: str) -> None:
    assert offered(bash_script, *words) == {whole}


@pytest.fixture(scope="module")
def fish_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "penstock.fish"
    file.write_text(script("fish"))
    return file


@needs("fish")
@pytest.mark.parametrize(("words", "whole"), CASES)
def test_fish_completes(fish_script: Path, words: tuple[str, ...], whole: str, tmp_path: Path) -> None:
    typed = " ".join(("penstock", *words))
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {fish_script}\ncomplete -C '{typed}'"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stderr == ""
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [whole]


@pytest.fixture(scope="module")
def zsh_functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of those that zsh loads by name, as the help of the command tells to fill it."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "_penstock").write_text(script("zsh"))
    return folder


@needs("zsh")
@pytest.mark.parametrize(("words", "whole"), CASES)
def test_zsh_completes(zsh_functions: Path, words: tuple[str, ...], whole: str) -> None:
    *before, _ = words
    with Terminal(("zsh", "-f", "-i"), term="xterm") as terminal:
        terminal.enter(f"fpath=({zsh_functions} $fpath); autoload -Uz compinit; compinit -u -D\n")
        terminal.enter("penstock() { print -r -- \"GOT $*\" }; echo LOAD''ED\n")
        terminal.until("LOADED\n")
        terminal.enter(" ".join(("penstock", *words)) + "\t\n")
        terminal.until(" ".join(("GOT", *before, whole)) + "\n")


@needs("bash")
def test_what_an_option_chooses_from_is_offered(bash_script: Path) -> None:
    assert offered(bash_script, "up", "--kv-transport", "") == {"auto", "nats", "shm"}


@needs("bash")
def test_folders_are_offered_where_one_is_wanted(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "handbook").mkdir()
    (tmp_path / "hand.txt").write_text("")
    assert offered(bash_script, "index", "hand", folder=tmp_path) == {"handbook"}


@pytest.mark.thorough(but="bash | zsh")
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_of_all_commands(shell: str) -> None:
    text = script(shell)
    assert all(name in text for name in COMMANDS)
