"""The safetensors files of a directory: what they hold, and their tensors while they are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.engine.loading.weight_files import damaged_file, weight_files


@dataclass(frozen=True, slots=True)
class StoredTensor:
    path: Path
    shape: tuple[int, ...]
    dtype: str  # in the spelling of safetensors


class Checkpoint:
    """Headers of model.safetensors, or of the shards that model.safetensors.index.json names.

    Raises NotFound for missing files, InvalidRequest for damaged ones.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        for path in weight_files(Path(model_dir)):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118  (not a mapping: it has no __iter__)
                    view = file.get_slice(name)
                    self.tensors[name] = StoredTensor(path, tuple(view.get_shape()), view.get_dtype())

    @contextmanager
    def reading(self) -> Iterator[OpenTensors]:
        """Tensors to copy from. The files' pages leave memory when this ends, so it should end often."""
        with ExitStack() as stack:
            yield OpenTensors(self, stack)


class OpenTensors:
    """Tensors as they are stored, in the files' memory: valid until `reading` ends, to be copied."""

    def __init__(self, checkpoint: Checkpoint, stack: ExitStack) -> None:
        self._checkpoint = checkpoint
        self._stack = stack
        self._files: dict[Path, Any] = {}

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._file(name).get_tensor(name)
        return tensor

    def read_part(self, name: str, index: int) -> Tensor:
        """Entry `index` of the first dimension."""
        tensor: Tensor = self._file(name).get_slice(name)[index]
        return tensor

    def _file(self, name: str) -> Any:
        path = self._checkpoint.tensors[name].path
        if path not in self._files:
            self._files[path] = self._stack.enter_context(_opened(path))
        return self._files[path]


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise damaged_file(path, error) from error
