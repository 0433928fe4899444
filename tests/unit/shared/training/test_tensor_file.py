"""Files that training writes: for whom they are, and what an interrupted write leaves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shared.files.atomic_write import write_file
from shared.training.tensor_file import write_tensors


@pytest.fixture(params=[0o022, 0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_who_may_read_what_is_written_the_umask_says(umask: int, tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)}, {"format": "pt"})
    write_file(tmp_path / "a.json", b"{}")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o666 & ~umask}


def test_a_leftover_of_an_interrupted_write_has_no_say_in_that(umask: int, tmp_path: Path) -> None:
    (tmp_path / f".new-{os.getpid()}-a.safetensors").touch(0o600)
    write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o666 & ~umask


def test_a_write_that_fails_leaves_what_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"x": torch.ones(2)})
    with pytest.raises(ValueError, match="non contiguous"):
        write_tensors(file, {"x": torch.ones(2, 3).T})
    assert load_file(file)["x"].tolist() == [1.0, 1.0]
