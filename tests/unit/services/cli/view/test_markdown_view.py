"""Markdown in a terminal while it comes in: the screen has all of it once, whatever the pieces were."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cli.view.markdown_view import MarkdownView
from tests.support.screen import Screen

COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7])m")
LONG_LINE = "result = " + " + ".join(f"number_{n}" for n in range(12))
DOCUMENT = f"""\
# A heading

Some **bold** text, `code` and a [link](https://example.org/a).
The second line of it, with <think>tags</think> and ![a picture](cat.png).

1. first

2. second
   with more
   ```python
   print("in a list")
   ```
3. third

```python
def f(x):
    return x  # two

{LONG_LINE}
```

| name | meaning |
|---|---|
| one | a rather long explanation of what one is, which does not fit into a line |
| two | short |

> quoted
> twice

***

- a
- b

[1]: https://example.org/reference
The end"""


class TerminalText(io.StringIO):
    """Written to a terminal of this size; everything goes to `screen`."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.screen.write(text)
        return len(text)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    sized(monkeypatch, 60, 12)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def sized(monkeypatch: pytest.MonkeyPatch, columns: int, rows: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))


def opened(columns: int = 60, rows: int = 12) -> tuple[MarkdownView, TerminalText]:
    out = TerminalText(Screen(columns, rows))
    return MarkdownView(out, clock=lambda: 0.0), out


def shown(*pieces: str) -> str:
    view, out = opened()
    for piece in pieces:
        view.add(piece)
    view.end()
    return out.screen.text


WHOLE = pytest.fixture(lambda: shown(DOCUMENT), name="whole")


def test_nothing_of_the_text_is_lost(whole: str) -> None:
    words = set(re.findall(r"[\w.:/<>]+", DOCUMENT)) - {"1.", "2.", "3.", "2", "3"}
    flat = re.sub(r"\s+", "", whole)
    assert [word for word in sorted(words) if word not in flat] == ["python"]


def test_marks_are_shown_as_what_they_mean(whole: str) -> None:
    assert "**" not in whole
    assert "```" not in whole
    assert "Some bold text, code and a link (https://example.org/a)" in whole.replace("\n", " ")


def test_line_breaks_stay() -> None:
    assert shown("one\ntwo\n") == "one\ntwo"


def test_code_is_as_it_was_however_long(whole: str) -> None:
    joined = whole.replace("\n", "")
    assert LONG_LINE in joined
    assert "def f(x):    return x  # two" in joined


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, len(DOCUMENT)), max_size=20))
def test_the_pieces_in_which_it_comes_do_not_show(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(DOCUMENT)]
    pieces = [DOCUMENT[begin:end] for begin, end in itertools.pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        sized(patch, 60, 12)
        assert shown(*pieces) == shown(DOCUMENT)


@pytest.mark.thorough
def test_one_character_after_another_is_the_same(whole: str) -> None:
    assert shown(*DOCUMENT) == whole


def test_a_block_higher_than_the_screen_is_whole_in_the_end() -> None:
    code = "```\n" + "".join(f"line {n}\n" for n in range(40)) + "```\n"
    assert shown(*code).splitlines() == [f"line {n}" for n in range(40)]


def test_what_has_come_is_on_the_screen_at_once() -> None:
    view, out = opened()
    view.add("Hel")
    assert out.screen.text == "Hel"
    view.add("lo **wor")
    assert out.screen.text == "Hello **wor"
    view.add("ld**")
    assert out.screen.text == "Hello world"


def test_only_lines_that_differ_are_written_again() -> None:
    view, out = opened()
    view.add("first line\nsecond")
    out.writes.clear()
    view.add(" line")
    (written,) = filter(None, out.writes)
    assert "first" not in written
    assert "second line" in written


def test_a_terminal_that_is_slow_to_show_gets_several_pieces_at_once() -> None:
    out = TerminalText(Screen())
    times_s = iter([0.0, 1.0, 3.9, 4.0, 4.0])  # showing "a" takes from the first to the second
    view = MarkdownView(out, clock=lambda: next(times_s))
    view.add("a")
    view.add("b")
    assert out.screen.text == "a"
    view.add("c")
    assert out.screen.text == "abc"


def test_no_text_moves_the_cursor() -> None:
    assert shown("a\x1b[2Jb\x07\r\n\x9bc") == "a\\x1b[2Jb\\x07\n\\x9bc"


def test_answers_follow_each_other() -> None:
    view, out = opened()
    for answer in ("one", "two\n\nthree"):
        view.add(answer)
        view.end()
    assert out.screen.text == "one\ntwo\n\nthree"


def test_there_are_colours_unless_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def written() -> str:
        view, out = opened()
        view.add(DOCUMENT)
        view.end()
        return "".join(out.writes)

    assert COLOUR.search(written())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(written())
