"""Pages of a mapped checkpoint are given back: its tensors are what they were, and little of it is here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.mapped_file import give_back_pages
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


def test_an_embedder_keeps_no_pages_of_its_checkpoint_but_of_the_words_that_it_reads() -> None:
    embedder = Embedder.load()
    if not embedder.is_native:
        pytest.skip("torch reads all of it for every text")
    embedder.embed(["The gate of the penstock opens at dawn."])
    assert resident_kb(find_model_files().weights) < 4096
