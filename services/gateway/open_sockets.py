"""The sockets of this process, also those of libraries that tell nobody which are theirs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

OPEN_FILES = "/proc/self/fd"
IS_SOCKET = "socket:"


def socket_names() -> dict[int, str]:
    """Return the kernel's name of each socket of this process, by descriptor: no other socket ever gets it.
    Raises OSError where the system does not show them."""
    found = {}
    for entry in os.listdir(OPEN_FILES):
        with suppress(OSError):  # closed meanwhile
            name = _name_of(entry)
            if name.startswith(IS_SOCKET):
                found[int(entry)] = name
    return found


def open_files() -> int:
    """Return how many files and sockets this process has open. Raises OSError as above."""
    return len(os.listdir(OPEN_FILES))


@contextmanager
def borrow_socket(fd: int, name: str) -> Iterator[socket.socket | None]:
    """Give the socket of this name under a descriptor of its own, or None where it is gone: `fd` may be
    another's by now."""
    one = None
    with suppress(OSError):
        one = socket.socket(fileno=os.dup(fd))
    if one is None:
        yield None
        return
    with one:
        yield one if _name_of(str(one.fileno())) == name else None


def is_internet(one: socket.socket) -> bool:
    return one.family in (socket.AF_INET, socket.AF_INET6)


def _name_of(entry: str) -> str:
    return os.readlink(f"{OPEN_FILES}/{entry}")
