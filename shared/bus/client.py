"""nats-py's client, except that it does not tell a password to a server that says it has no TLS.

nats-py encrypts when the server asks for it. A server in between that does not ask would get everything in
the clear: who wants TLS must be able to insist.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from shared.bus.credentials import Credentials


class NoTls(nats.errors.Error):
    def __str__(self) -> str:
        return "it offers no TLS"


class TlsClient(Client):
    """Given a TLS context, it talks TLS or not at all."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and "tls" in self.options and not info.get("tls_required"):
            raise NoTls
        await super()._process_info(info, initial_connection)


def login(url: str, credentials: Credentials | None) -> dict[str, Any]:
    """The options of nats-py that say who we are and whom we trust."""
    own_ca = credentials.tls_context() if credentials else None
    by_url = ssl.create_default_context() if urlsplit(url).scheme == "tls" else None
    return {
        "user": (credentials and credentials.user) or None,
        "password": (credentials and credentials.password) or None,
        "tls": own_ca or by_url,
    }


def is_refusal(error: object) -> bool:
    """Whether trying again is in vain: the server refuses us, or we it."""
    distrust = isinstance(error, ssl.SSLCertVerificationError | NoTls)
    return distrust or "authorization violation" in str(error).lower()


def refusal(url: str, credentials: Credentials | None, why: object) -> str:
    """The sentence for such an error."""
    if isinstance(why, ssl.SSLCertVerificationError | NoTls):
        return (
            f"the NATS server at {url} cannot be trusted ({why}); check tls_ca in PENSTOCK_NATS_CREDENTIALS"
        )
    who = f"the user {credentials.user}" if credentials and credentials.user else "a client without a user"
    return f"the NATS server at {url} refuses {who} ({why}); check PENSTOCK_NATS_CREDENTIALS"
