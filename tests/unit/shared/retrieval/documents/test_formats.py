"""What is read of files of every kind, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from shared.retrieval.documents import pdf_text
from shared.retrieval.documents.document import Document, Unreadable
from shared.retrieval.documents.formats import read_file
from shared.retrieval.documents.html_text import read_html
from shared.retrieval.documents.passages import split_passages
from shared.retrieval.documents.pdf_text import read_pdf


def read(path: Path, data: bytes) -> Document:
    path.write_bytes(data)
    return read_file(path, path.name)


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
    document = read(tmp_path / "a.MD", "# Gäte\r\nText.\r\n".encode(mark))
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
    document = read(tmp_path / "a.HTM", page.encode("windows-1251"))
    assert split_passages(document.text, markdown=document.is_markdown)[0].text == "Ворота"


@given(st.text(alphabet=st.sampled_from("<>/ph1li&;#!-x \n\"'"), max_size=200))
def test_any_html_becomes_text(html: str) -> None:
    split_passages(read_html(html).markdown, markdown=True)


def test_a_pdf_knows_where_its_pages_begin(tmp_path: Path) -> None:
    document = read(tmp_path / "a.pdf", pdf_of("The gate opens at dawn and clo-\nses late.", "The soup."))
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


def test_front_matter_is_metadata_and_no_text_and_what_follows_stays_where_it_was(tmp_path: Path) -> None:
    head = "---\ntitle: The gate\ntags: [a, b]\n---\n"
    document = read(tmp_path / "a.md", f"{head}It opens.\n".encode())
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
    document = read(tmp_path / "a.md", f"---\ntitle: Front\n---\n{text}".encode())
    assert document.title == title


def test_html_says_of_itself_what_its_title_and_meta_elements_say(tmp_path: Path) -> None:
    page = """<title>The
      gate</title><meta name="Author" content="A. B."><meta name=keywords content="red, iron ,">
      <meta name=viewport content=wide><meta charset=utf-8><meta name=empty><p>Text"""
    document = read(tmp_path / "a.html", page.encode())
    assert document.metadata == (
        ("author", "A. B."),
        ("keywords", "iron"),
        ("keywords", "red"),
        ("title", "The gate"),
    )


def test_a_pdf_says_of_itself_what_its_information_says(tmp_path: Path) -> None:
    information = b"/Title (The gate) /Author (A. B.) /CreationDate (D:20240131120000Z) /Producer (x)"
    document = read(tmp_path / "a.pdf", pdf_of("Text.", information=information))
    assert document.metadata == (("author", "A. B."), ("title", "The gate"), ("year", "2024"))


@pytest.mark.parametrize("information", [b"/Title 7 0 R", b"/CreationDate (today)", b"/Author [1 2"])
def test_a_pdf_with_damaged_information_is_read_all_the_same(tmp_path: Path, information: bytes) -> None:
    document = read(tmp_path / "a.pdf", pdf_of("Text.", information=information))
    assert document.text == "Text.\n"
    assert "year" not in dict(document.metadata)
