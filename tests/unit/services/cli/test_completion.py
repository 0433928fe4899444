"""`penstock completion bash` in a real bash: what it offers for a line that somebody has typed so far."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.__main__ import COMMANDS
from services.cli.completion import SHELLS
from tests.support.data import REPOSITORY

TIMEOUT_S = 60
OFFER = """\
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
_shtab_penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


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


pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is what completes")


def test_the_commands_are_offered(bash_script: Path) -> None:
    assert set(COMMANDS) <= offered(bash_script, "")
    assert offered(bash_script, "st") == {"status"}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("ask", "--temp"), "--temperature"),
        (("chat", "--sys"), "--system"),
        (("up", "--deco"), "--decode"),
        (("keys", "new", "--ten"), "--tenant"),
        (("bench", "engine", "--quan"), "--quant"),
        (("status", "--wa"), "--watch"),
    ],
)
def test_the_options_of_a_command_are_offered(bash_script: Path, words: tuple[str, ...], option: str) -> None:
    assert offered(bash_script, *words) == {option}


def test_what_an_option_chooses_from_is_offered(bash_script: Path) -> None:
    assert offered(bash_script, "up", "--kv-transport", "") == {"auto", "nats", "shm"}
    assert offered(bash_script, "ask", "hi", "--priority", "h") == {"high"}


def test_folders_are_offered_where_one_is_wanted(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "handbook").mkdir()
    (tmp_path / "hand.txt").write_text("")
    assert offered(bash_script, "index", "hand", folder=tmp_path) == {"handbook"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_of_all_commands(shell: str) -> None:
    text = script(shell)
    assert all(name in text for name in COMMANDS)
