"""A model of the hub: its files in the hub's local cache, fetched where they are not there."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.errors import NotFound, Unavailable

HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""The files that are fetched of a repository on the hub: no pickles, no second copies in other formats."""
EVERY_S = 5.0
"""The time from one report of a fetch to the next."""

FetchProgress = Callable[[int, int], None]
"""(bytes that are here, bytes of what has begun to come); from threads of the fetch, one at a time."""


def fetch_model(hub_id: str, progress: FetchProgress | None = None) -> Path:
    """The folder with the files. Nothing is told of a model that is here already.

    Raises NotFound when there is no such model, Unavailable when it could not be fetched.
    """
    import huggingface_hub  # noqa: PLC0415 - a second of import time that a local model need not pay

    told: dict[str, Any] = {} if progress is None else {"tqdm_class": _bars(FetchReports(progress))}
    repository, _, revision = hub_id.partition("@")
    if revision:
        told["revision"] = revision
    with hub_answers(repository):
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=list(HUB_FILES), **told))


@contextmanager
def hub_answers(hub_id: str) -> Iterator[None]:
    """Raise NotFound or Unavailable for what the hub's library raises within."""
    from huggingface_hub.errors import (  # noqa: PLC0415 - as above
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except RevisionNotFoundError as error:
        raise NotFound(f"the hub has no such revision of {hub_id!r}; check what stands behind @") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise NotFound(
            f"the hub has no model {hub_id!r} for you; check the name, and HF_TOKEN if it is private or gated"
        ) from error
    except Exception as error:  # the hub's, its HTTP client's and the disk's: all mean this
        raise Unavailable(
            f"the model {hub_id!r} could not be fetched ({type(error).__name__}); where there is no hub, "
            f"bring its folder or its GGUF file here and keep it with `penstock pull PATH --name {hub_id}`, "
            "or serve it with `penstock up --model PATH`"
        ) from error


class FetchReports:
    """Tells at once that something comes, then how far it is every EVERY_S."""

    def __init__(self, progress: FetchProgress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock = clock
        self._due_s: float | None = None
        self._lock = threading.Lock()

    def note(self, done: int, total: int) -> None:
        with self._lock:
            now_s = self._clock()
            if total and (self._due_s is None or now_s >= self._due_s):
                self._due_s = now_s + EVERY_S
                self._progress(done, total)


def _bars(reports: FetchReports) -> type:
    """The progress bars that the hub's library counts with; what they would write goes nowhere."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # noqa: PLC0415 - as above

    class ReportedBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options |= {"file": io.StringIO(), "disable": False, "mininterval": 0}
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]  # it has no types

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            self.refresh()
            return shown

        def refresh(self, *_args: Any, **_options: Any) -> None:
            if self.unit == "B":
                reports.note(int(self.n), int(self.total or 0))

    return ReportedBar
