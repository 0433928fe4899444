"""Files in a state directory by which a command tells the launcher of a stack what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import InvalidRequest
from shared.files.atomic_write import write_secret

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def write_command_file(path: Path, command: DataclassInstance) -> None:
    """Raises InvalidRequest where it cannot be written."""
    try:
        write_secret(path, json.dumps(asdict(command), indent=1) + "\n")
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror or error}; make room there"
        ) from error


def read_command_file(path: Path, most_bytes: int, checked: Callable[[Any], T], otherwise: str) -> T | None:
    """Return what `checked` makes of the file, None where there is none.

    Raises InvalidRequest, which says what to do `otherwise`, for what is no such file.
    """
    if not os.access(path, os.F_OK):  # as mostly, at every look
        return None
    try:
        with path.open("rb") as file:
            return checked(json.loads(file.read(most_bytes)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be read ({error}); {otherwise}") from error
