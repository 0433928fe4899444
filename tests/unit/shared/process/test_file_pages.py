"""Pages of mapped files are given back: what is there stays what it was, and little of it is here."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.process.file_pages import give_back_pages, give_back_program_pages
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.model_files import find_model_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux")


def resident_kb(file: Path) -> int:
    resident, path, inside = 0, str(file.resolve()), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split(":")[0].isalpha() and "-" in line.split()[0]:
            inside = line.endswith(path)
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return resident


def test_tensors_are_what_they_were_after_their_pages_were_given_back(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.arange(1 << 20, dtype=torch.float32)}, str(file))
    weight = load_file(str(file))["weight"]
    total = weight.sum()
    assert resident_kb(file) >= 4096
    give_back_pages(file)
    assert resident_kb(file) == 0
    assert weight.sum() == total


def test_libraries_are_read_again_where_they_are_needed() -> None:
    ours = mmap.mmap(-1, mmap.PAGESIZE)
    ours[:5] = b"ours!"
    give_back_program_pages()
    assert torch.ones(3).sum() == 3.0
    assert ours[:5] == b"ours!"


def test_a_page_of_a_program_that_was_written_to_is_kept(tmp_path: Path) -> None:
    """The dynamic linker writes so, and forbids it then."""
    file = tmp_path / "program"
    file.write_bytes(b"\0" * 3 * mmap.PAGESIZE)
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    )
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with file.open("rb") as opened:
        place = libc.mmap(
            None, 3 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, opened.fileno(), 0
        )
    ctypes.memmove(place, b"ours!", 5)
    libc.mprotect(place, mmap.PAGESIZE, mmap.PROT_READ)
    libc.mprotect(place + mmap.PAGESIZE, 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    ctypes.string_at(place + mmap.PAGESIZE, 2 * mmap.PAGESIZE)
    assert resident_kb(file) == 3 * mmap.PAGESIZE // 1024
    give_back_program_pages()
    assert resident_kb(file) == mmap.PAGESIZE // 1024
    assert ctypes.string_at(place, 5) == b"ours!"


def test_an_embedder_keeps_no_pages_of_its_checkpoint_but_of_the_words_that_it_reads() -> None:
    embedder = Embedder.load()
    if not embedder.is_native:
        pytest.skip("torch reads all of it for every text")
    embedder.embed(["The gate of the penstock opens at dawn."])
    assert resident_kb(find_model_files().weights) < 4096
