"""Markdown as a terminal shows it: colours and indents, and nothing of the text is lost.

Line breaks stay where the model made them; addresses of links, HTML and what else has no place in a terminal
are shown as they were written.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.table import Table

CODE_THEME = "ansi_dark"
"""The terminal's own colours."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_SHOWN_AS_WRITTEN = ["reference", "image", "autolink"]
_PARSER = (
    MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(_SHOWN_AS_WRITTEN)
)


def split_at_last_block(text: str) -> tuple[str, str]:
    """Return what will not change whatever follows, and the rest: the last block, with a line that has no end
    yet.

    It does not matter in which pieces the text came.
    """
    whole_lines = text[: text.rfind("\n") + 1]
    *done, last = blocks_of(whole_lines) or [""]
    return "".join(done), last + text[len(whole_lines) :]


def blocks_of(text: str) -> list[str]:
    """Paragraphs, lists, tables and so on, each with the blank lines that follow it."""
    begins = [
        token.map[0] for token in _PARSER.parse(text) if token.map and not token.level and token.nesting >= 0
    ]
    lines = _LINE.findall(text)
    edges = [0, *begins[1:], len(lines)] if begins else [0, len(lines)]
    return ["".join(lines[begin:end]) for begin, end in itertools.pairwise(edges) if begin < end]


def render_lines(console: Console, text: str) -> list[str]:
    """A block's lines with their escape sequences. They fit the console's width but for those of code that
    stands by itself, so that it can be copied."""
    segments = console.render(_Markdown(text), console.options)
    lines = [_without_blank_end(line) for line in Segment.split_lines(segments)]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return [_written(console, line) for line in lines]


def _without_blank_end(line: list[Segment]) -> list[Segment]:
    """Cut the blanks that only fill a line up."""
    line = list(line)
    while line:
        last = line.pop()
        text = last.text.rstrip(" ")
        if text:
            return [*line, Segment(text, last.style)]
    return []


def _written(console: Console, line: list[Segment]) -> str:
    with console.capture() as written:
        console.print(Segments(line), end="", crop=False, soft_wrap=True)
    return written.get()


class _Heading(markdown.Heading):
    LEVEL_ALIGN = {**markdown.Heading.LEVEL_ALIGN, "h1": "left"}  # noqa: RUF012 - a class variable there too


class _CodeBlock(markdown.CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        syntax = Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            background_color="default",
            word_wrap=True,
        )
        if options.max_width < console.width:  # in a list or a quote, which cut what is too long
            yield syntax
            return
        code = syntax.highlight(syntax.code)
        code.rstrip()
        code.no_wrap, code.overflow = True, "ignore"
        yield code


class _TableElement(markdown.TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            for column in table.columns:
                column.overflow = "fold"
            yield table


class _Markdown(markdown.Markdown):
    elements = {  # noqa: RUF012 - a class variable there too
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "table_open": _TableElement,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        self.parsed = [*_with_hard_breaks(_PARSER.parse(text))]


def _with_hard_breaks(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
        yield token
