from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.errors import NotFound, TooLarge
from shared.retrieval.documents import corpus as corpus_module
from shared.retrieval.documents.corpus import CorpusReader, is_other_kind
from shared.retrieval.documents.document import Document
from shared.retrieval.documents.text_files import MAX_FILE_BYTES


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")


class Read:
    """All of a corpus."""

    def __init__(self, corpus: str) -> None:
        self.documents: list[Document] = []
        with CorpusReader(corpus) as reader:
            for path in reader.files:
                reader.read(path, self.documents.append)
            self.skipped = reader.skipped()


def names(corpus: str) -> list[str]:
    return [document.name for document in Read(corpus).documents]


def test_markdown_and_text_of_all_folders_count(tmp_path: Path) -> None:
    write(tmp_path, "b.md", "a.txt", "sub/deep/c.md", "code.py", "data.json")
    assert names(str(tmp_path)) == ["a.txt", "b.md", "sub/deep/c.md"]


def test_folders_of_programs_and_hidden_things_do_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.md",
        ".git/b.md",
        ".venv/c.md",
        "node_modules/d.md",
        "x/tests/e.md",
        "p.egg-info/f.txt",
        ".g.md",
    )
    assert names(str(tmp_path)) == ["a.md"]


def test_a_pattern_takes_the_files_of_one_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.md", "c.txt", "sub/d.md")
    assert names(str(tmp_path / "*.md")) == ["a.md", "b.md"]


def test_what_cannot_be_read_is_named_and_the_rest_counts(tmp_path: Path) -> None:
    write(tmp_path, "a.md")
    (tmp_path / "latin.txt").write_bytes("déjà vu".encode("latin-1"))
    (tmp_path / "long.txt").write_bytes(b"")
    os.truncate(tmp_path / "long.txt", MAX_FILE_BYTES + 1)
    corpus = Read(str(tmp_path))
    assert [document.name for document in corpus.documents] == ["a.md"]
    assert corpus.skipped == (
        ("latin.txt", "it is not UTF-8 text"),
        ("long.txt", f"{MAX_FILE_BYTES + 1} bytes are over the limit of {MAX_FILE_BYTES}"),
    )


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf# Gate\n")
    assert [document.text for document in Read(str(tmp_path)).documents] == ["# Gate\n"]


def test_suffixes_in_capitals_count(tmp_path: Path) -> None:
    write(tmp_path, "README.MD", "NOTES.TXT")
    documents = Read(str(tmp_path)).documents
    assert [(document.name, document.is_markdown) for document in documents] == [
        ("NOTES.TXT", False),
        ("README.MD", True),
    ]


def test_what_is_passed_by_is_told_with_the_reason(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.md",
        "x/tests/b.md",
        "y/tests/c.md",
        "d.doc",
        "sub/e.DOC",
        "Makefile",
        "__pycache__/g.txt",
    )
    write(tmp_path, ".hidden", ".git/h.md")
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere")
    (tmp_path / "linked").symlink_to(tmp_path / "sub")
    read = "only .md, .markdown, .txt, .html, .htm, .pdf, .jsonl are read"
    skipped = Read(str(tmp_path)).skipped
    assert [name for name, _ in skipped if not is_other_kind(name)] == ["gone.md", "linked/"]
    assert skipped == (
        ("gone.md", "it is a link that leads nowhere"),
        ("linked/", "links to folders are not followed"),
        ("tests/", "folders of this name are left out (2 here)"),
        ("hidden files and folders", "they are left out (2 here)"),
        ("files without a suffix", f"{read} (1 of these here)"),
        ("*.doc", f"{read} (2 of these here)"),
    )


def test_a_corpus_may_be_one_file(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.md", "c.py")
    assert names(str(tmp_path / "b.md")) == ["b.md"]
    with pytest.raises(NotFound, match="is no document"):
        Read(str(tmp_path / "c.py"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "closed/b.md")
    (tmp_path / "closed").chmod(0)
    try:
        assert Read(str(tmp_path)).skipped == (("closed/", "Permission denied"),)
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_a_folder_without_documents_and_one_that_is_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no readable document \(\.md, "):
        Read(str(tmp_path))
    with pytest.raises(NotFound, match="does not exist"):
        Read(str(tmp_path / "nowhere"))


def test_too_many_documents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MAX_FILES", 2)
    write(tmp_path, "a.md", "b.md", "c.md")
    with pytest.raises(TooLarge, match="more than 2 documents"):
        Read(str(tmp_path))


@pytest.mark.parametrize("limit", ["MAX_DOCUMENTS", "MAX_CORPUS_CHARS"])
def test_too_much_in_them_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 3)
    monkeypatch.setattr(corpus_module, limit, 3)
    assert len(names(str(tmp_path))) == 3
    monkeypatch.setattr(corpus_module, limit, 2)
    with pytest.raises(TooLarge, match="index a smaller folder"):
        Read(str(tmp_path))


def test_a_link_out_of_the_folder_is_left_out_and_one_within_it_counts(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/secret.md", "corpus/a.md")
    (tmp_path / "corpus" / "b.md").symlink_to(tmp_path / "elsewhere" / "secret.md")
    (tmp_path / "corpus" / "c.md").symlink_to("a.md")
    for corpus in (tmp_path / "corpus", tmp_path / "corpus" / "*.md"):
        read = Read(str(corpus))
        assert [document.name for document in read.documents] == ["a.md", "c.md"]
        assert read.skipped == (("b.md", "it is a link that leaves the folder"),)


def test_a_link_that_the_operator_names_is_followed(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/a.md")
    (tmp_path / "b.md").symlink_to(tmp_path / "elsewhere" / "a.md")
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    assert names(str(tmp_path / "b.md")) == ["b.md"]
    assert names(str(tmp_path / "folder")) == ["a.md"]


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    write(tmp_path, "b.md")
    os.mkfifo(tmp_path / "a.md")
    assert Read(str(tmp_path)).skipped == (("a.md", "it is no file"),)


def test_a_file_whose_name_is_not_unicode_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "b.md")
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff.md")).write_text("Text.")
    assert Read(str(tmp_path)).skipped == (("\udcff.md", "its name is not UTF-8"),)


def test_a_hostile_page_costs_its_corpus_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "c.md")
    (tmp_path / "b.html").write_text("<![foo[")
    read = Read(str(tmp_path))
    assert [document.name for document in read.documents] == ["a.md", "c.md"]
    assert read.skipped == (("b.html", "it is damaged (AssertionError)"),)
