"""The key of a transfer on both sides before its number is known."""

from __future__ import annotations

TransferKey = tuple[str, int]
"""request_id, epoch."""
