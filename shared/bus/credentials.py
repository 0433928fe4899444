"""The credentials for a NATS server: made for our own, read from a file for any."""

from __future__ import annotations

import secrets
import ssl
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import InvalidRequest
from shared.files.atomic_write import write_secret

PASSWORD_BYTES = 32
ALLOWED = ({"user", "password"}, {"user", "password", "tls_ca"}, {"tls_ca"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """`tls_ca` is the file with the certificates that the server's must be signed by: then TLS is a must.

    `user` and `password` may be "" where that is all a server wants. `file` is where they were read, "" for
    those that are in no file.
    """

    user: str
    password: str = field(repr=False)
    tls_ca: str = ""
    file: str = field(default="", compare=False)

    @classmethod
    def random(cls, user: str) -> Credentials:
        return cls(user, secrets.token_urlsafe(PASSWORD_BYTES))

    def write(self, path: Path) -> None:
        lines = {"user": self.user, "password": self.password, "tls_ca": self.tls_ca}
        write_secret(path, "".join(f'{key} = "{value}"\n' for key, value in lines.items() if value))

    def tls_context(self) -> ssl.SSLContext | None:
        """Make the context of a TLS connection; None without `tls_ca`. Raises InvalidRequest when that is no
        file of certificates."""
        if not self.tls_ca:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            raise InvalidRequest(
                f"the certificates {self.tls_ca} cannot be used ({error.strerror})"
            ) from error


def load_credentials(file: str) -> Credentials | None:
    """Read the credentials of a file; None for "". Raises InvalidRequest with a sentence, which never shows
    what is in the file."""
    if not file:
        return None
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"the NATS credentials {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the NATS credentials {file} are not TOML") from error
    if not all(isinstance(value, str) and value for value in table.values()) or set(table) not in ALLOWED:
        raise InvalidRequest(
            f'the NATS credentials {file} must be two lines, user = "…" and password = "…", '
            'and tls_ca = "FILE" where the server has a certificate of its own'
        )
    credentials = Credentials(table.get("user", ""), table.get("password", ""), table.get("tls_ca", ""), file)
    credentials.tls_context()  # what is wrong with it is to be heard now
    return credentials
