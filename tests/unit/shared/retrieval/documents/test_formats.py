"""What is read of files of every kind, and what is said of those that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from shared.retrieval.documents import formats, pdf_text
from shared.retrieval.documents.document import Document, Unreadable
from shared.retrieval.documents.formats import read_documents
from shared.retrieval.documents.html_text import read_html
from shared.retrieval.documents.passages import split_passages
from shared.retrieval.documents.pdf_text import read_pdf


def read(path: Path, data: bytes) -> list[Document]:
    path.write_bytes(data)
    return list(read_documents(path, path.name, lambda name, reason: pytest.fail(f"{name}: {reason}")))


def lines_of(path: Path, *lines: object) -> tuple[list[Document], list[tuple[str, str]]]:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    skipped: list[tuple[str, str]] = []
    documents = list(read_documents(path, path.name, lambda name, reason: skipped.append((name, reason))))
    return documents, skipped


def pdf_of(*pages: str, information: bytes = b"") -> bytes:
    """A PDF with a line of text for each line of each page."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for page in pages:
        text = b" ".join(b"(%s) Tj 0 -14 Td" % line.encode() for line in page.splitlines())
        stream = b"BT /F1 12 Tf 72 720 Td " + text + b" ET"
        kids.append(b"%d 0 R" % (len(objects) + 1))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (len(objects) + 2)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    info = b" /Info << %s >>" % information if information else b""
    tail = b"trailer << /Size %d /Root 1 0 R%s >>\nstartxref\n%d\n%%%%EOF"
    tail = tail % (len(objects) + 1, info, len(data))
    return data + head + table + tail


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-8"])
def test_a_byte_order_mark_hides_no_heading(tmp_path: Path, mark: str) -> None:
    (document,) = read(tmp_path / "a.MD", "# Gäte\r\nText.\r\n".encode(mark))
    assert document == Document("a.MD", "# Gäte\nText.\n", is_markdown=True)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.txt", "déjà".encode("latin-1"), "it is not UTF-8 text"),
        ("a.md", b"\x00\x01", "it is binary: it has NUL characters"),
        ("a.html", b"<meta charset=klingon><p>x", "it says to be written in klingon, which nobody knows"),
        ("a.pdf", b"no pdf", "it is damaged"),
        ("a.pdf", b"%PDF-1.4\n1 0 obj\n<<", "it is damaged"),
        ("a.pdf", pdf_of(""), "its pages have no text; scanned ones need OCR first"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(tmp_path / name, data)


def test_html_keeps_its_headings_lists_tables_and_code() -> None:
    html = """<!doctype html><html><head><title>Site</title><style>p {}</style></head><body>
      <nav>Home | About</nav><h1>The <em>gate</em></h1><p>It opens
      at&nbsp;dawn.<br># not a heading</p><ul><li>oil<li>wax</ul><script>x = "<p>no</p>"</script>
      <table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>
      <h2>Use</h2><pre>make  gate
  ``` now</pre></body></html>"""
    assert read_html(html).markdown.split("\n") == [
        "# The gate",
        "",
        "It opens at dawn.",
        "\\# not a heading",
        "",
        "- oil",
        "",
        "- wax",
        "",
        "| a | b |",
        "| 1 | 2 |",
        "## Use",
        "",
        "```",
        "make  gate",
        "\\  ``` now",
        "```",
        "",
        "",
    ]


def test_the_title_of_a_page_without_a_heading_is_one() -> None:
    assert read_html("<title> A\n page </title><p>Text").markdown == "# A page\n\nText\n\n"


def test_html_is_read_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    page = '<meta http-equiv="content-type" content="text/html; charset=windows-1251"><p>Ворота'
    (document,) = read(tmp_path / "a.HTM", page.encode("windows-1251"))
    assert split_passages(document.text, markdown=document.is_markdown)[0].text == "Ворота"


@given(st.text(alphabet=st.sampled_from("<>/ph1li&;#!-x \n\"'"), max_size=200))
def test_any_html_becomes_text(html: str) -> None:
    split_passages(read_html(html).markdown, markdown=True)


def test_a_pdf_knows_where_its_pages_begin(tmp_path: Path) -> None:
    (document,) = read(tmp_path / "a.pdf", pdf_of("The gate opens at dawn and clo-\nses late.", "The soup."))
    assert document.text == "The gate opens at dawn and closes late.\nThe soup.\n"
    assert [document.text[start:][:8] for start in document.page_starts] == ["The gate", "The soup"]


def test_an_encrypted_pdf_says_so(tmp_path: Path) -> None:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.encrypt("secret", algorithm="RC4-128")
    with (tmp_path / "made.pdf").open("wb") as file:
        writer.write(file)
    with pytest.raises(Unreadable, match="it is encrypted"):
        read_pdf((tmp_path / "made.pdf").read_bytes())


def test_a_pdf_of_too_many_pages_or_too_long_to_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, pdf_text.MAX_PDF_S + 1.0])
    with pytest.raises(Unreadable, match="takes longer than 120 s"):
        read_pdf(pdf_of("a", "b"), lambda: next(ticks))
    monkeypatch.setattr(pdf_text, "MAX_PDF_PAGES", 1)
    assert read_pdf(pdf_of("a")).text == "a\n"
    with pytest.raises(Unreadable, match="2 pages are over the limit of 1"):
        read_pdf(pdf_of("a", "b"))


def test_a_line_of_json_is_a_document_with_title_and_metadata(tmp_path: Path) -> None:
    documents, skipped = lines_of(
        tmp_path / "a.jsonl",
        {
            "id": "g1",
            "title": "The\ngate",
            "text": "It opens.",
            "metadata": {"year": 2024, "tag": ["b", "a"]},
        },
        "",
        {"_id": 7, "text": "More."},
        {"text": "Last."},
    )
    assert skipped == []
    assert documents == [
        Document(
            "a.jsonl#g1",
            "It opens.",
            False,
            "The gate",
            metadata=(("tag", "a"), ("tag", "b"), ("year", "2024")),
        ),
        Document("a.jsonl#7", "More.", False),
        Document("a.jsonl#4", "Last.", False),
    ]


OTHER_METADATA = (
    "its `metadata` has other values than texts, numbers, truth values and lists of them, of 256 characters"
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is no JSON in UTF-8"),
        ("[" * 100_000, "it is no JSON in UTF-8"),
        ([], "it is no object with a `text`"),
        ({"text": 1}, "it is no object with a `text`"),
        ({"text": "a", "title": 1}, "its `title` is no text of at most 512 characters"),
        ({"text": "a", "id": []}, "its `id` is no text or number of at most 256 characters"),
        ({"text": "a", "metadata": []}, "its `metadata` is no object"),
        ({"text": "a", "metadata": {"b": ["c"] * 33}}, "its `metadata` has 33 values, more than 32"),
        (
            {"text": "a", "metadata": {"": "c"}},
            OTHER_METADATA,
        ),
        (
            {"text": "a", "metadata": {"b": ["c" * 257]}},
            OTHER_METADATA,
        ),
        (
            {"text": "a", "metadata": {"b": None}},
            OTHER_METADATA,
        ),
        ({"text": "a\0"}, "it is binary: it has NUL characters"),
        ({"text": "\ud800"}, "it has half of a character (a lone surrogate)"),
        ({"text": "x" * 300}, "it is over the limit of 300 bytes"),
    ],
)
def test_a_bad_line_is_skipped_with_its_reason_and_the_next_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: object, reason: str
) -> None:
    if "300" in reason:
        monkeypatch.setattr(formats, "MAX_LINE_BYTES", 300)
    documents, skipped = lines_of(tmp_path / "a.jsonl", line, {"text": "good 🙂"})
    assert skipped == [("a.jsonl, line 1", reason)]
    assert [(document.name, document.text) for document in documents] == [("a.jsonl#2", "good 🙂")]


def test_a_file_of_lines_may_be_longer_than_others_up_to_its_own_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MAX_FILE_BYTES", 10)
    assert len(read(tmp_path / "a.jsonl", b'{"text": "a"}\n' * 3)) == 3
    monkeypatch.setattr(formats, "MAX_JSONL_BYTES", 41)
    with pytest.raises(Unreadable, match="42 bytes are over the limit of 41"):
        read(tmp_path / "a.jsonl", b'{"text": "a"}\n' * 3)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.md")
    with pytest.raises(Unreadable, match="it is no file"):
        list(read_documents(tmp_path / "a.md", "a.md", lambda *_: None))


def test_a_file_whose_name_is_not_unicode_is_left_out(tmp_path: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff.md"))
    path.write_text("Text.")
    with pytest.raises(Unreadable, match="its name is not UTF-8"):
        list(read_documents(path, path.name, lambda *_: None))


def test_front_matter_is_metadata_and_no_text_and_what_follows_stays_where_it_was(tmp_path: Path) -> None:
    head = "---\ntitle: The gate\ntags: [a, b]\n---\n"
    (document,) = read(tmp_path / "a.md", f"{head}It opens.\n".encode())
    assert document.metadata == (("tags", "a"), ("tags", "b"), ("title", "The gate"))
    (passage,) = split_passages(document.text, markdown=True, title=document.title)
    assert (passage.heading, passage.text) == ("The gate", "It opens.")
    assert (passage.start, passage.end) == (len(head), len(head) + len("It opens."))


@pytest.mark.parametrize(
    ("text", "title"), [("# Own\nx", ""), ("```\n# no heading\n```\n## Part\nx", "Front"), ("x", "Front")]
)
def test_the_title_in_front_matter_counts_where_there_is_no_other(
    tmp_path: Path, text: str, title: str
) -> None:
    (document,) = read(tmp_path / "a.md", f"---\ntitle: Front\n---\n{text}".encode())
    assert document.title == title


def test_html_says_of_itself_what_its_title_and_meta_elements_say(tmp_path: Path) -> None:
    page = """<title>The
      gate</title><meta name="Author" content="A. B."><meta name=keywords content="red, iron ,">
      <meta name=viewport content=wide><meta charset=utf-8><meta name=empty><p>Text"""
    (document,) = read(tmp_path / "a.html", page.encode())
    assert document.metadata == (
        ("author", "A. B."),
        ("keywords", "iron"),
        ("keywords", "red"),
        ("title", "The gate"),
    )


def test_a_pdf_says_of_itself_what_its_information_says(tmp_path: Path) -> None:
    information = b"/Title (The gate) /Author (A. B.) /CreationDate (D:20240131120000Z) /Producer (x)"
    (document,) = read(tmp_path / "a.pdf", pdf_of("Text.", information=information))
    assert document.metadata == (("author", "A. B."), ("title", "The gate"), ("year", "2024"))


@pytest.mark.parametrize("information", [b"/Title 7 0 R", b"/CreationDate (today)", b"/Author [1 2"])
def test_a_pdf_with_damaged_information_is_read_all_the_same(tmp_path: Path, information: bytes) -> None:
    (document,) = read(tmp_path / "a.pdf", pdf_of("Text.", information=information))
    assert document.text == "Text.\n"
    assert "year" not in dict(document.metadata)
