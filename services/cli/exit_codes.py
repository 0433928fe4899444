"""Exit codes of the commands; 0 is success."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_EXPIRED = 3
EXIT_SHED = 4
EXIT_CANCELLED = 5
"""Somebody else cancelled the request: Ctrl-C and a closed pipe have codes in `shared.process.quiet_end`."""
