"""An index on disk: a file of it is damaged, or is another one whose checksums are right."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

import msgpack
import numpy as np

from shared.retrieval.documents.seen_files import SEEN_NAME, read_seen
from shared.retrieval.index.manifest import FORMAT, MANIFEST_NAME, POINTER_NAME, other_format
from shared.retrieval.index.store import open_generation, remove_unused
from shared.retrieval.index.unfinished import UnfinishedVectors
from tests.fuzz.mutation import mutated_bytes, mutated_json
from tests.fuzz.target import REFUSALS, Target, check_refusal, in_folder
from tests.support.small_index import SMALL_INDEX_MODEL, save_small_index

GENERATION = "generations/00000001"
DIMENSIONS = 8


@cache
def files() -> dict[str, bytes]:
    """Return what a small index is made of, by path."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_small_index(folder, "first passage", "second passage", "third")
        unfinished = UnfinishedVectors(folder, SMALL_INDEX_MODEL, DIMENSIONS)
        unfinished.append(np.zeros((2, 16), np.uint8), np.eye(2, DIMENSIONS, dtype=np.float32))
        found = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
    rows = [("a.md", (1, 2, 3, 4), 1, 20, (), True), ("b.md", None, 0, 0, (("b.md", "why"),), False)]
    found[SEEN_NAME] = _seen({"rules": "r", "content": "c", "files": rows})
    return found


def _seen(told: object) -> bytes:
    packed: bytes = msgpack.packb(told, unicode_errors="surrogatepass")
    return hashlib.sha256(packed).digest() + packed


def make(rng: random.Random) -> bytes:
    """The path of a file, a line end, and what it holds."""
    name = rng.choice(sorted(files()))
    data = files()[name]
    if name == POINTER_NAME or name.endswith((MANIFEST_NAME, ".json")):
        data = (
            mutated_json(json.loads(data), rng)
            if isinstance(json.loads(data), dict)
            else mutated_bytes(data, rng)
        )
    else:
        data = mutated_bytes(data, rng)
    return name.encode() + b"\n" + data


def run(folder: Path, data: bytes) -> None:
    said, _, content = data.partition(b"\n")
    name = said.decode(errors="replace")
    if name not in files():
        return
    shutil.rmtree(folder)
    for path, held in {**files(), name: content}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(held)
    read_seen(folder, "r", "c")
    UnfinishedVectors(folder, SMALL_INDEX_MODEL, DIMENSIONS).read()
    try:
        other_format(folder)
        opened = open_generation(folder, SMALL_INDEX_MODEL)
        if opened is not None and len(opened.index):
            queries = np.ones((1, opened.index.vectors.shape[1]), np.float32)
            opened.index.search(queries, 3)
            opened.index.lexical.search("first passage", 3)
            opened.index.metadata_of(0)
    except REFUSALS as error:
        check_refusal(error)
    if name != POINTER_NAME:
        _make_checksums_right(folder, name, content)
        open_generation(folder, SMALL_INDEX_MODEL)
    remove_unused(folder)


def _make_checksums_right(folder: Path, name: str, content: bytes) -> None:
    """Change all files together: who can write one of them can write the others too."""
    manifest = folder / GENERATION / MANIFEST_NAME
    short = name.rpartition("/")[2]
    if not name.endswith(MANIFEST_NAME) and name.startswith(GENERATION):
        told = json.loads(manifest.read_bytes())
        told["files"][short] = [len(content), hashlib.sha256(content).hexdigest()]
        manifest.write_text(json.dumps(told))
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    pointer = {"format": FORMAT, "generation": 1, "manifest": digest}
    (folder / POINTER_NAME).write_text(json.dumps(pointer))


TARGET = Target("index_folder", make, in_folder(run), tries=150)
