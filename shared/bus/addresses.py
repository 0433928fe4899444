"""The addresses of the bus: one NATS server, or those of a cluster, separated by commas. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

MARK = ","
MAX_SERVERS = 16
"""The most servers that can be named: in a cluster each of them is connected to each."""


def server_urls(text: str) -> list[str]:
    """Return the URL of each server that is named."""
    return [url for part in text.split(MARK) if (url := part.strip())]


def are_server_urls(text: str) -> bool:
    """Return whether each names a host and a scheme of NATS, and there are not too many."""
    urls = server_urls(text)
    try:
        known = all(urlsplit(url).scheme in ("nats", "tls") and urlsplit(url).hostname for url in urls)
    except ValueError:  # brackets that do not match
        return False
    return known and 0 < len(urls) <= MAX_SERVERS


def without_password(text: str) -> str:
    """Return the addresses as people may see them."""
    return MARK.join(_shown(url) for url in server_urls(text))


def wants_tls(text: str) -> bool:
    """Return whether any is to be reached over TLS alone: then all are."""
    return any(urlsplit(url).scheme == "tls" for url in server_urls(text))


def _shown(url: str) -> str:
    netloc = urlsplit(url).netloc
    return url.replace(netloc, netloc.rpartition("@")[2]) if "@" in netloc else url
