"""The code of other versions than this one: of an earlier commit, with more fields, or with a break."""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.messages import MEANING_VERSION
from tests.support.data import REPOSITORY

KERNELS = "shared/engine/native"
MORE_FIELDS = {
    "routing.py": ("Reserve", "Prefill", "Lost", "Cancel"),
    "tokens.py": ("Tokens", "Text"),
    "kv.py": ("KvGrant", "KvDone"),
    "hand_over.py": ("HandOver", "Successor"),
    "drafts.py": ("DraftCommit", "DraftBlock"),
    "fleet.py": ("WorkerReport", "DecodeReport", "Heartbeat"),
}
"""Messages and records by file, none of which says what an answer is to be."""
FIELD = "    of_a_later_version: int = 0\n"
TRIMMED = "    for default in _defaults_at_end(cls):\n"
"""The line of the codec that begins to leave out what has its default."""
NEXT_MEANING = MEANING_VERSION + 1


def git(*arguments: str) -> str:
    return git_bytes(*arguments).decode().strip()


def git_bytes(*arguments: str) -> bytes:
    command = ("git", "-C", str(REPOSITORY), *arguments)
    return subprocess.run(command, check=True, capture_output=True).stdout


@contextmanager
def code_of(commit: str) -> Iterator[Path]:
    """A folder with the code of a commit, and our compiled kernels, which have to be its own."""
    if git("diff", "--name-only", commit, "--", f"{KERNELS}/*.cpp", f"{KERNELS}/*.h"):
        raise AssertionError(f"the kernels of {commit} are others: name a later commit")
    with tempfile.TemporaryDirectory(prefix="penstock-other-") as folder:
        with tarfile.open(fileobj=io.BytesIO(git_bytes("archive", commit))) as archive:
            archive.extractall(folder, filter="data")
        for library in (REPOSITORY / KERNELS).glob("*.so"):
            shutil.copy2(library, Path(folder) / KERNELS)
        yield Path(folder)


@contextmanager
def code_with_more_fields() -> Iterator[Path]:
    """The code of this commit with a field more at the end of MORE_FIELDS, which all of it sends."""
    with code_of("HEAD") as root:
        for name, classes in MORE_FIELDS.items():
            _add_field(root / "shared" / "messages" / name, classes)
        _replace(root / "shared" / "bus" / "codec.py", TRIMMED, "    for default in ():\n")
        yield root


@contextmanager
def code_of_another_meaning() -> Iterator[Path]:
    """The code of this commit, whose messages mean something else."""
    with code_of("HEAD") as root:
        compatibility = root / "shared" / "messages" / "compatibility.py"
        text = compatibility.read_text("utf-8")
        raised, count = re.subn(
            r"^MEANING_VERSION = \d+$", f"MEANING_VERSION = {NEXT_MEANING}", text, flags=re.M
        )
        assert count == 1
        compatibility.write_text(raised, "utf-8")
        yield root


def _add_field(path: Path, classes: tuple[str, ...]) -> None:
    lines = path.read_text("utf-8").splitlines(keepends=True)
    ends = {
        node.name: node.end_lineno or 0
        for node in ast.parse("".join(lines)).body
        if isinstance(node, ast.ClassDef)
    }
    for end in sorted((ends[name] for name in classes), reverse=True):
        lines.insert(end, FIELD)
    path.write_text("".join(lines), "utf-8")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} times what is to be replaced"
    path.write_text(text.replace(old, new), "utf-8")
