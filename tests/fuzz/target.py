"""A target of the fuzz: how an input is made, and what takes it and breaks no invariant."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.errors import MAX_SENTENCE_CHARS, InternalError, PenstockError
from shared.retrieval.documents.document import Unreadable

MAX_HOP_CHARS = 32
"""An error may begin with where it happened."""
REFUSALS = (PenstockError, Unreadable)

RunOne = Callable[[bytes], None]
"""Take one input. Raises what breaks an invariant: anything but a refusal with a sentence."""


class Fault(Exception):
    """An invariant that an input broke without an exception of its own.

    `data` is that input where it is not the last one.
    """

    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """`make` draws an input, `opened` gives what takes it. With `has_stack` that is a whole fleet, else a
    thing of microseconds to milliseconds. `tries` are those of `make test`."""

    name: str
    make: Callable[[random.Random], bytes]
    opened: Callable[[], AbstractContextManager[RunOne]]
    tries: int = 200
    has_stack: bool = False


def check_refusal(error: PenstockError | Unreadable) -> None:
    """Raise Fault unless `error` is typed and says in a sentence what is wrong."""
    sentence = str(error)
    if isinstance(error, InternalError):
        raise Fault(f"refused as a bug of ours: {sentence}") from error
    if len(sentence.split()) < 3:
        raise Fault(f"refused without a sentence: {sentence!r}") from error
    most_chars = MAX_SENTENCE_CHARS if isinstance(error, Unreadable) else type(error).max_chars
    if len(sentence) > most_chars + MAX_HOP_CHARS:
        raise Fault(f"refused with {len(sentence)} characters: {sentence[:200]!r}") from error
    try:
        sentence.encode()
    except UnicodeEncodeError as surrogate:
        raise Fault(f"refused with what is no Unicode text: {sentence!r}") from surrogate


def refusing(run: RunOne) -> RunOne:
    """Take a typed refusal with a sentence for an answer."""

    def run_one(data: bytes) -> None:
        try:
            run(data)
        except REFUSALS as error:
            check_refusal(error)

    return run_one


def in_memory(run: RunOne) -> Callable[[], AbstractContextManager[RunOne]]:
    """Return the `opened` of what needs nothing but the input."""

    @contextmanager
    def opened() -> Iterator[RunOne]:
        yield refusing(run)

    return opened


def in_folder(
    run: Callable[[Path, bytes], None], prepare: Callable[[Path], None] = lambda _: None
) -> Callable[[], AbstractContextManager[RunOne]]:
    """Return the `opened` of what reads files: `run` puts the input into the folder that `prepare` filled."""

    @contextmanager
    def opened() -> Iterator[RunOne]:
        with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as name:
            folder = Path(name)
            prepare(folder)
            yield refusing(lambda data: run(folder, data))

    return opened


def put_named_file(folder: Path, data: bytes, names: Container[str], prepare: Callable[[Path], None]) -> str:
    """Fill the folder anew and put the input into the file that its first line names; "" for another name."""
    said, _, content = data.partition(b"\n")
    name = said.decode(errors="replace")
    if name not in names:
        return ""
    for file in folder.iterdir():
        file.unlink()
    prepare(folder)
    (folder / name).write_bytes(content)
    return name
