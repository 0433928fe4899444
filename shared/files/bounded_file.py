"""Read a small file that a user names."""

from __future__ import annotations

from pathlib import Path

from shared.errors import InvalidRequest


def read_bounded(path: Path, max_bytes: int, named: str, advice: str = "") -> bytes:
    """Return the bytes of a file, of which no more than one beyond `max_bytes` is read.

    Raises InvalidRequest, which begins with what the file is `named` and ends with the `advice`, where it
    cannot be read or is larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidRequest(f"{named} cannot be read ({error.strerror}){advice}") from error
    if len(data) > max_bytes:
        raise InvalidRequest(f"{named} is larger than {max_bytes} bytes{advice}")
    return data


def read_bounded_text(path: Path, max_bytes: int, named: str, advice: str = "") -> str:
    """Return the text of such a file. Raises InvalidRequest likewise, and where it is not UTF-8."""
    data = read_bounded(path, max_bytes, named, advice)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{named} is not UTF-8 text{advice}") from error
