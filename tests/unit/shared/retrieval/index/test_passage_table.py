from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.errors import ChecksumMismatch
from shared.retrieval.documents.passages import Passage
from shared.retrieval.index.passage_table import (
    COLUMNS_NAME,
    FIRST_ROWS_NAME,
    TABLE_NAMES,
    IndexedFile,
    PassageTable,
)

FILES = (
    IndexedFile("a.md", "1", (Passage("Gate", "It opens.", 0, 9), Passage("Port", "Öfen", 9, 13))),
    IndexedFile("empty.md", "2", ()),
    IndexedFile("b.md", "3", (Passage("", "Soup.", 0, 5),), page_starts=(0, 3), metadata=(("lang", "en"),)),
    IndexedFile("c.md", "4", (Passage("Port", "水門", 0, 2), Passage("Gate", "", 2, 2))),
)


def saved(table: PassageTable, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    table.save(folder)
    return {name: (folder / name).read_bytes() for name in TABLE_NAMES}


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [3, 2, 1, 0], [2], [1], [], [0, 3]])
def test_parts_of_tables_are_as_one_that_is_made_of_their_files(tmp_path: Path, numbers: list[int]) -> None:
    table, other = PassageTable.of_files(FILES), PassageTable.of_files(FILES[::-1])
    parts = [
        (table, range(number, number + 1)) if number % 2 else (other, range(3 - number, 4 - number))
        for number in numbers
    ]
    joined = saved(PassageTable.of_parts(parts), tmp_path / "joined")
    assert joined == saved(PassageTable.of_files([FILES[number] for number in numbers]), tmp_path / "made")


def test_documents_without_a_passage_are_named() -> None:
    assert PassageTable.of_files(FILES).without_text() == ["empty.md"]
    assert PassageTable.of_files(()).without_text() == []


@pytest.mark.parametrize(
    "first_rows",
    [[0, 2, 2, 4], [1, 2, 2, 3], [0, 3, 2, 3], [0, 2, 2, 6], [-1, 2, 2, 3], [0, 2, 2, 2], [0, 2, 2]],
)
def test_files_that_do_not_begin_where_their_passages_do_are_refused(
    tmp_path: Path, first_rows: list[int]
) -> None:
    PassageTable.of_files(FILES).save(tmp_path)
    np.save(tmp_path / FIRST_ROWS_NAME, np.array(first_rows))
    with pytest.raises(ChecksumMismatch, match="do not belong together"):
        PassageTable.load(tmp_path)


@pytest.mark.parametrize(("column", "value"), [(0, 9), (1, 9), (2, -1), (3, -1)])
def test_numbers_that_lead_nowhere_are_refused(tmp_path: Path, column: int, value: int) -> None:
    PassageTable.of_files(FILES).save(tmp_path)
    columns = np.load(tmp_path / COLUMNS_NAME)
    columns[2, column] = value
    np.save(tmp_path / COLUMNS_NAME, columns)
    with pytest.raises(ChecksumMismatch, match="do not belong together"):
        PassageTable.load(tmp_path)


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    PassageTable.of_files(FILES).save(tmp_path)
    files = PassageTable.load(tmp_path).files
    assert [(file.name, file.key, file.first_row) for file in files] == [
        ("a.md", "1", 0),
        ("empty.md", "2", 2),
        ("b.md", "3", 2),
        ("c.md", "4", 3),
    ]
    assert (files[2].page_starts, files[2].metadata) == ((0, 3), (("lang", "en"),))
    with pytest.raises(IndexError, match="no document 4"):
        files[4]
