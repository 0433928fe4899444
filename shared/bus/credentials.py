"""User and password of a NATS server: made for our own, read from a file for any."""

from __future__ import annotations

import os
import secrets
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import InvalidRequest

PASSWORD_BYTES = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str = field(repr=False)

    @classmethod
    def random(cls, user: str) -> Credentials:
        return cls(user, secrets.token_urlsafe(PASSWORD_BYTES))

    def write(self, path: Path) -> None:
        write_secret(path, f'user = "{self.user}"\npassword = "{self.password}"\n')


def load_credentials(file: str) -> Credentials | None:
    """None for "". Raises InvalidRequest with a sentence, which never shows what is in the file."""
    if not file:
        return None
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"the NATS credentials {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the NATS credentials {file} are not TOML") from error
    match table:
        case {"user": str(user), "password": str(password)} if user and password and len(table) == 2:
            return Credentials(user, password)
    raise InvalidRequest(f'the NATS credentials {file} must be two lines: user = "…" and password = "…"')


def write_secret(path: Path, text: str) -> None:
    """A file that nobody else can read, not even for a moment; one that is there already is replaced."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
