"""nats-py without aiohttp, which it imports for WebSockets alone: a third of what a command's start takes."""

from __future__ import annotations

import sys


def import_nats() -> None:
    """Import nats-py; to be called before anything else imports it."""
    if "aiohttp" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # what is None cannot be imported
    try:
        import nats.aio.transport  # noqa: F401, PLC0415 - while it cannot
    finally:
        del sys.modules["aiohttp"]
