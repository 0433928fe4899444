"""structlog without rich, which it imports for coloured tracebacks: a sixth of what a launcher imports."""

from __future__ import annotations

import sys


def import_structlog() -> None:
    """Import structlog; to be called before anything else imports it."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # what is None cannot be imported
    try:
        import structlog  # noqa: F401, PLC0415 - while it cannot
    finally:
        del sys.modules["rich"]
