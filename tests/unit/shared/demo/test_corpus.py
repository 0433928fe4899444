"""Which books are trained on, and which are held out."""

from pathlib import Path

import pytest

from shared.demo.corpus import is_held_out_book, read_books


def test_the_book_split_follows_the_file_names(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"book {number}.md").write_text(f"# Title: T\n\nText of book {number}.\n")
    books = read_books(tmp_path)
    held_out = [number for number in range(60) if is_held_out_book(f"book {number}.md")]
    assert sorted(books.held_out) == sorted(f"Text of book {number}." for number in held_out)
    assert len(books.training) + len(books.held_out) == 60


def test_a_folder_without_books_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--books"):
        read_books(tmp_path)
