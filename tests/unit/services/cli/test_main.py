from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib import metadata

import pytest

from services.cli.__main__ import COMMANDS, main


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {metadata.version('penstock')}\n"


def test_every_command_has_help_and_refuses_what_it_does_not_know() -> None:
    for name in COMMANDS:
        if name in ("up", "config"):  # they replace the process
            continue
        with contextlib.suppress(SystemExit):
            assert main([name, "--help"]) == 0
        assert usage_error([name, "--no-such-option"]) == 2, name


def usage_error(argv: list[str]) -> int | str | None:
    try:
        return main(argv)
    except SystemExit as end:
        return end.code


def test_no_command_and_an_unknown_one_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    capsys.readouterr()
    assert main(["xyzzy"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said == "penstock: there is no command 'xyzzy'; `penstock help` lists the commands"


def test_a_slip_of_the_fingers_is_told_what_was_probably_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stauts"]) == 2
    assert "no command 'stauts': did you mean status?" in capsys.readouterr().err


def test_help_of_a_command_is_what_it_says_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["help", "ask"])
    assert end.value.code == 0
    assert "usage: penstock ask" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["ask", "status", "audit"])
def test_the_quick_commands_never_import_the_model_library(command: str) -> None:
    code = (
        "import sys, contextlib\n"
        "from services.cli.__main__ import main\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    main([{command!r}, '--help'])\n"
        "assert not {'torch', 'faiss', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"usage: penstock {command}" in done.stdout


@pytest.mark.parametrize("command", ["status", "audit", "ask"])
def test_without_a_stack_a_command_says_how_to_start_one(
    command: str, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [command, *(["hello"] if command == "ask" else []), "--state-dir", str(tmp_path)]
    assert main(argv) == 1
    assert "penstock up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/nowhere/at/all"], "does not exist"),
        (["a.md", "b.md"], "one corpus in quotes"),
        ([".", "--threads", "0"], "take 1 to 256"),
        ([".", "--threads", "257"], "take 1 to 256"),
    ],
)
def test_indexing_what_is_no_corpus_or_on_no_core_is_a_usage_error(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["index", *argv])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
