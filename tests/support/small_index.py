"""An index on disk with vectors that no model has made."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shared.retrieval.documents.passages import Passage
from shared.retrieval.index.passage_index import PassageIndex
from shared.retrieval.index.passage_table import IndexedFile
from shared.retrieval.index.store import chunk_keys, save_generation

SMALL_INDEX_MODEL = "model/256"


def save_small_index(folder: Path, *texts: str, model: str = SMALL_INDEX_MODEL) -> int:
    """The number of the generation. Passage n is under the heading "Part n", was made of characters 10 n to
    10 n + 9, the second one begins the second page, and its vector is axis n of eight."""
    passages = tuple(
        Passage(f"Part {number}", text, number * 10, number * 10 + 9) for number, text in enumerate(texts)
    )
    vectors = np.eye(len(texts), 8, dtype=np.float32)
    files = (IndexedFile("a.md", "key", passages, page_starts=(0, 10), metadata=(("lang", "en"),)),)
    keys = chunk_keys([passage.embedded_text for passage in passages])
    index = PassageIndex(files, vectors)
    return save_generation(folder, index, keys, embedder=model, content="/".join(texts))
