"""What a client should know, said by several: one text."""

from __future__ import annotations


def joined_warnings(*warnings: str) -> str:
    """Those that say something, in their order, none twice."""
    return "; ".join(dict.fromkeys(filter(None, warnings)))
