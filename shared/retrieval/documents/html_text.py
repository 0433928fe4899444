"""HTML as Markdown that the splitter understands: headings, lists, tables and code keep their form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

from shared.retrieval.documents.metadata import Pairs, tidied_metadata
from shared.retrieval.documents.passages import FENCE, read_heading

UNREAD = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "nav", "title"})
"""Nothing of these is text of the document; of the title see `read_html`."""
LISTED = "keywords"
"""The names of `meta` whose content is several values, with commas between them."""
FOR_BROWSERS = frozenset({"viewport", "robots", "googlebot", "referrer", "theme-color", "color-scheme"})
"""The names of `meta` whose content is not of the document."""
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
BLOCKS = frozenset(
    {
        "p",
        "div",
        "section",
        "article",
        "main",
        "header",
        "footer",
        "aside",
        "blockquote",
        "ul",
        "ol",
        "dl",
        "dt",
        "dd",
    }
    | {
        "table",
        "thead",
        "tbody",
        "caption",
        "figure",
        "figcaption",
        "address",
        "form",
        "body",
        "hr",
        "details",
        "summary",
    }
)
CELLS = frozenset({"td", "th"})
SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class HtmlText:
    """`metadata` is the title and what `meta` elements say by name."""

    markdown: str
    metadata: Pairs


def read_html(html: str) -> HtmlText:
    """Return the text; where it has no heading of the first level, its title is that."""
    parser = _MarkdownWriter()
    parser.feed(html)
    parser.close()
    return HtmlText(parser.markdown(), parser.metadata())


class _MarkdownWriter(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = []
        self._text: list[str] = []
        self._title: list[str] = []
        self._meta: list[tuple[str, str]] = []
        self._mark = ""
        self._unread: list[str] = []
        self._has_heading = False
        self._in_code = False

    def markdown(self) -> str:
        self._end_block()
        title = SPACES.sub(" ", "".join(self._title)).strip()
        head = [f"# {title}", ""] if title and not self._has_heading else []
        return "\n".join([*head, *self._lines]) + "\n"

    def metadata(self) -> Pairs:
        return tidied_metadata([("title", "".join(self._title)), *self._meta])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "meta":
            self._take_meta(dict(attrs))
        elif tag in UNREAD:
            self._unread.append(tag)
        elif tag == "br":
            self._text.append("\n")
        elif tag in CELLS:
            self._text.append(" | " if self._text else "")
        elif tag in HEADINGS or tag in BLOCKS or tag in {"li", "tr", "pre"}:
            self._end_block()
            self._mark = {**HEADINGS, "li": "- ", "tr": "| "}.get(tag, self._mark if tag == "p" else "")
            self._in_code = tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unread:
            del self._unread[self._unread.index(tag) :]
        elif tag in HEADINGS or tag in BLOCKS or tag in {"li", "tr", "pre"}:
            self._end_block()
            self._mark, self._in_code = "", False

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self._text.append(data if self._in_code else SPACES.sub(" ", data))
        elif self._unread == ["title"]:
            self._title.append(data)

    def _take_meta(self, told: dict[str, str | None]) -> None:
        name, content = (told.get("name") or "").strip().lower(), told.get("content") or ""
        if name not in FOR_BROWSERS:
            values = content.split(",") if name == LISTED else [content]
            self._meta += [(name, value) for value in values]

    def _end_block(self) -> None:
        text = "".join(self._text)
        self._text = []
        if not text.strip():
            return
        if self._in_code:
            self._lines += ["```", *map(_plain, text.strip("\n").splitlines()), "```", ""]
            return
        lines = [line for line in (SPACES.sub(" ", line).strip() for line in text.split("\n")) if line]
        if self._mark.startswith("#"):
            self._has_heading = self._has_heading or self._mark == HEADINGS["h1"]
            self._lines += [self._mark + " ".join(lines), ""]
        elif self._mark == "| ":
            self._lines.append(f"| {' '.join(lines)} |")
        elif self._mark:
            self._lines += [self._mark + " ".join(lines), ""]
            self._mark = ""
        else:
            self._lines += [*map(_plain, lines), ""]


def _plain(line: str) -> str:
    """Write a line so that it is not taken for a heading or a fence."""
    return f"\\{line}" if read_heading(line) or FENCE.match(line) else line
