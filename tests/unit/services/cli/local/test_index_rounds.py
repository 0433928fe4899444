from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.local.index_progress import IndexProgressLine
from services.cli.local.index_rounds import IndexRounds


class Enough(Exception):
    """Ends a watch that goes on for ever."""


def pauses(*happen: Callable[[], object]) -> Callable[[float], None]:
    """Of a watch, in which these things happen one after another, until it is enough."""
    left = iter(happen)

    def pause(_seconds: float) -> None:
        if (next_one := next(left, None)) is None:
            raise Enough
        next_one()

    return pause


def test_a_corpus_is_indexed_again_when_it_has_changed_and_what_is_skipped_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    file = corpus / "a.md"
    file.write_text("The gate opens.")
    (corpus / "b.doc").write_text("x")
    rounds = IndexRounds(str(corpus), tmp_path / "state", threads=1)
    rounds.index()

    def nothing() -> None:
        pass

    with pytest.raises(Enough):
        rounds.index_changes(
            pauses(
                nothing, lambda: file.write_text("It closes late."), nothing, file.unlink, nothing, nothing
            )
        )
    out, err = capsys.readouterr()
    assert [line.split(" in ")[0] for line in out.splitlines()] == [
        "1 files, 1 passages (1 new)",
        "1 files, 1 passages (1 new)",
    ]
    assert err.count("skipped *.doc") == 1
    assert "no readable document" in err
    assert err.rstrip().endswith("the index stays as it was")


@pytest.mark.parametrize(
    ("embeds", "said"),
    [
        (False, "stopped while it read: the same command reads anew"),
        (True, "stopped; what is embedded so far is kept, and the same command goes on from there"),
    ],
)
def test_whoever_stops_it_is_told_what_is_kept(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    embeds: bool,
    said: str,
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.md").write_text("The gate opens.")
    told = "show" if embeds else "show_reading"

    show = getattr(IndexProgressLine, told)

    def show_and_press(*shown: object) -> None:
        show(*shown)
        raise KeyboardInterrupt

    monkeypatch.setattr(IndexProgressLine, told, show_and_press)
    with pytest.raises(KeyboardInterrupt):
        IndexRounds(str(corpus), tmp_path / "state", threads=1).index()
    assert capsys.readouterr().err.splitlines()[-1] == said
