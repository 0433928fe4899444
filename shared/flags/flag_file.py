"""The file of all changes: a line of JSON each, which several gateways of one host may share.

It is read and written under a lock of its folder, whole: who writes adds what others have written meanwhile,
so that no change is lost, and who is killed leaves the file as it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.files.atomic_write import SECRET_MODE, write_file
from shared.files.folder_lock import locked_folder
from shared.flags.flag_history import FlagHistory, change_problem
from shared.messages import FlagChange

FLAG_FILE_NAME = "flags.jsonl"
"""The name of the file in the state directory of a stack."""
MAX_FLAG_FILE_BYTES = 4 << 20
"""The longest such file that is read."""
FORGOTTEN = "forgotten"
_TYPES = {"int": int, "str": str, "float": float}


@dataclass(frozen=True, slots=True)
class FlagFile:
    """A file that was read: `trouble` says which line cannot be used, "" for none; the others count."""

    history: FlagHistory
    trouble: str = ""


def read_flag_file(path: Path) -> FlagFile:
    """Return what the file says, nothing where there is none. Raises OSError, InvalidRequest where it is too
    long."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FLAG_FILE_BYTES + 1)
    except FileNotFoundError:
        return FlagFile(FlagHistory())
    if len(data) > MAX_FLAG_FILE_BYTES:
        raise InvalidRequest(f"{path} has more than {MAX_FLAG_FILE_BYTES} bytes: move it away")
    changes, forgotten, trouble = [], 0, ""
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            said = json.loads(line)
            if FORGOTTEN in said:
                forgotten = max(forgotten, _typed(said[FORGOTTEN], int))
            else:
                changes.append(_change(said))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            trouble = (
                trouble or f"line {number} of {path} is no change of a setting ({error}); it is left out"
            )
    return FlagFile(FlagHistory().united(changes, forgotten), trouble)


def unite_flag_file(path: Path, known: FlagHistory) -> FlagHistory:
    """Put what is known and what the file has into both, and return it. Raises OSError, InvalidRequest."""
    with locked_folder(path.parent):
        there = read_flag_file(path)
        united = known.united(there.history.changes, there.history.forgotten)
        if united != there.history or there.trouble:
            write_file(path, _lines(united), mode=SECRET_MODE)
    return united


def _lines(history: FlagHistory) -> bytes:
    said: list[dict[str, Any]] = [{FORGOTTEN: history.forgotten}] if history.forgotten else []
    said += [_said(change) for change in history.changes]
    return "".join(f"{json.dumps(each)}\n" for each in said).encode()


def _said(change: FlagChange) -> dict[str, Any]:
    """Return the fields that are not what they are anyway."""
    usual = {field.name: field.default for field in fields(FlagChange)}
    return {name: value for name, value in asdict(change).items() if value != usual[name]}


def _change(said: Any) -> FlagChange:
    """Raises ValueError, TypeError, KeyError for what is none. Fields of a newer version are left out."""
    values = {
        field.name: _typed(said[field.name], _TYPES[str(field.type)])
        for field in fields(FlagChange)
        if field.name in said
    }
    change = FlagChange(**values)
    if problem := change_problem(change):
        raise ValueError(problem)
    return change


def _typed(value: Any, wanted: type[Any]) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise TypeError(f"{value!r} is no {wanted.__name__}")
    return value
