"""Documents of a corpus, one of each format changed: read, and cut into passages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path

from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from shared.retrieval.documents.document import Document, Unreadable
from shared.retrieval.documents.document_jobs import packed_job, read_file_part, unpacked_part
from tests.fuzz.mutation import mutated_bytes, mutated_json, mutated_text
from tests.fuzz.target import Fault, Target, in_folder

MARKDOWN = """---
title: "A page"
tags: [a, b]
year: 2024
---
# One
Text of it. More.

* item
1. item

```python
code = "x"
```

| a | b |
|---|---|
| 1 | 2 |

## Two **bold**
The end.
"""
HTML = """<!doctype html><html><head><meta charset="utf-8"><title>A &amp; b</title>
<meta name="author" content="c"><script>var a = "<p>";</script><style>p {}</style></head>
<body><h1>One</h1><p>Text <b>of</b> it.<br>More</p><ul><li>a<li>b</ul><pre>x  y</pre>
<table><tr><th>a</th><td>b</td></tr></table><h2>Two</h2><a href="x">link</a></body></html>"""
RECORD = {
    "id": 7,
    "title": "A",
    "text": "Some text. More of it.",
    "metadata": {"a": ["b", 1, True], "c": 1.5},
}
WORDS = (
    "---",
    "#",
    "```",
    "|",
    "<",
    ">",
    "<div>" * 300,
    "</",
    "<!--",
    "&#x110000;",
    "&#55296;",
    "&",
    "=",
    "\n",
    ":",
    "- ",
)
SUFFIXES = (".md", ".txt", ".html", ".pdf", ".jsonl")


@cache
def pdf() -> bytes:
    writer = PdfWriter()
    for text in ("Hello there", "Second page"):
        page = writer.add_blank_page(200, 200)
        content = StreamObject()
        content.set_data(f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)
        font = DictionaryObject()
        font.update(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    writer.add_metadata({"/Title": "A", "/CreationDate": "D:2024"})
    written = BytesIO()
    writer.write(written)
    return written.getvalue()


def make(rng: random.Random) -> bytes:
    """A suffix, a line end, and what the file holds."""
    suffix = rng.choice(SUFFIXES)
    match suffix:
        case ".pdf":
            data = mutated_bytes(pdf(), rng)
            if rng.random() < 0.5:
                data = mutated_text(
                    pdf().decode("latin-1"), rng, ("obj", "endobj", "<<", ">>", "0 R")
                ).encode("latin-1", "replace")
        case ".jsonl":
            data = b"\n".join(mutated_json(RECORD, rng) for _ in range(rng.randint(1, 3)))
        case _:
            text = mutated_text(HTML if suffix == ".html" else MARKDOWN, rng, WORDS)
            encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))
            data = text.encode(encoding, "replace")
            data = mutated_bytes(data, rng) if rng.random() < 0.2 else data
    return suffix.encode() + b"\n" + data


def run(folder: Path, data: bytes) -> None:
    said, _, content = data.partition(b"\n")
    suffix = said.decode(errors="replace")
    if suffix not in SUFFIXES:
        return
    path = folder / f"document{suffix}"
    path.write_bytes(content)
    for document in _documents(path):
        document.text.encode()
        for passage in document.cut():
            if not 0 <= passage.start <= passage.end <= len(document.text):
                raise Fault(
                    f"a passage of characters {passage.start} to {passage.end} of {len(document.text)}"
                )


def _documents(path: Path) -> Iterator[Document]:
    """Read as a corpus is read, without a process of their own."""
    try:
        yield from unpacked_part(path.name, read_file_part(packed_job(path, path.name))).documents
    except Unreadable as error:
        if str(error).startswith("it is damaged") and path.suffix not in (".pdf", ".html"):
            raise Fault(str(error)) from error
        raise


TARGET = Target("document", make, in_folder(run), tries=100)
