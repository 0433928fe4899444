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
LOGIN, OWN_CERTIFICATE = {"user", "password"}, {"tls_cert", "tls_key"}
"""Lines of a file that come together or not at all."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`tls_ca` is the file with the certificates that the server's must be signed by: then TLS is a must.
    `tls_cert` and `tls_key` are those of our own, for a server that wants to see one.

    `user` and `password` may be "" where that is all a server wants. `file` is where they were read, "" for
    those that are in no file.
    """

    user: str
    password: str = field(repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    file: str = field(default="", compare=False)

    @classmethod
    def random(cls, user: str) -> Credentials:
        """Make a new password for `user`."""
        return cls(user, secrets.token_urlsafe(PASSWORD_BYTES))

    def write(self, path: Path) -> None:
        lines = {
            "user": self.user,
            "password": self.password,
            "tls_ca": self.tls_ca,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
        }
        write_secret(path, "".join(f'{key} = "{value}"\n' for key, value in lines.items() if value))

    def tls_context(self) -> ssl.SSLContext | None:
        """Make the context of a TLS connection; None without `tls_ca`. Raises InvalidRequest when that is no
        file of certificates, or our own cannot be used."""
        if not self.tls_ca:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            raise InvalidRequest(
                f"the certificates {self.tls_ca} cannot be used ({error.strerror})"
            ) from error
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key, password=_no_passphrase)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise InvalidRequest(
                    f"the certificate {self.tls_cert} and its key {self.tls_key} cannot be used ({why})"
                ) from error
        return context


def _no_passphrase() -> bytes:
    """Keep OpenSSL from asking at a terminal for that of an encrypted key."""
    raise ValueError("it is encrypted; use a key without a passphrase")


def _is_whole(names: set[str]) -> bool:
    """Return whether a file of lines with these names says who we are, whom we trust, or both."""
    pairs = all(pair <= names or not pair & names for pair in (LOGIN, OWN_CERTIFICATE))
    known = names <= LOGIN | OWN_CERTIFICATE | {"tls_ca"}
    return bool(names) and pairs and known and (not OWN_CERTIFICATE & names or "tls_ca" in names)


def load_credentials(file: str) -> Credentials | None:
    """Read the credentials of a file; None for "". Raises InvalidRequest with a sentence, which never shows
    what is in the file."""
    if not file:
        return None
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"the NATS credentials {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the NATS credentials {file} are not TOML") from error
    if not all(isinstance(value, str) and value for value in table.values()) or not _is_whole(set(table)):
        raise InvalidRequest(
            f'the NATS credentials {file} must be two lines, user = "…" and password = "…", '
            'and tls_ca = "FILE" where the server has a certificate of its own, with tls_cert = "FILE" and '
            'tls_key = "FILE" where it wants to see one'
        )
    credentials = Credentials(
        user=table.get("user", ""),
        password=table.get("password", ""),
        tls_ca=table.get("tls_ca", ""),
        tls_cert=table.get("tls_cert", ""),
        tls_key=table.get("tls_key", ""),
        file=file,
    )
    credentials.tls_context()  # what is wrong with it is to be heard now
    return credentials
