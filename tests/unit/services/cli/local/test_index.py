"""`penstock index`: what goes wrong is said on stderr, and is in the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.local import index, index_rounds
from shared.errors import InvalidRequest


class Rounds:
    """An indexing that fails as `problem` says, or works."""

    problem = ""

    def __init__(self, *_: object) -> None: ...
    def index(self) -> None:
        if self.problem:
            raise InvalidRequest(self.problem)


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("the folder has no documents", EXIT_FAILED)])
def test_a_problem_is_said_and_fails_the_command(
    problem: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Rounds, "problem", problem)
    monkeypatch.setattr(index_rounds, "IndexRounds", Rounds)
    assert index.main([str(tmp_path), "--state-dir", str(tmp_path / "state")]) == code
    assert (f"penstock index: {problem}\n" in capsys.readouterr().err) == bool(problem)


def test_a_corpus_that_does_not_exist_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        index.main([str(tmp_path / "nowhere")])
    assert ended.value.code == EXIT_USAGE
    assert "does not exist; name a folder or a file" in capsys.readouterr().err
