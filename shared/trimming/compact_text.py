"""Write what a prompt says in fewer characters: JSON without the space between its parts, text without space
that says nothing.
"""

from __future__ import annotations

import json
import re

BETWEEN_PARTS = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|\s+')
"""A text of JSON, which stays, or space between parts."""
BLANK_LINES = re.compile(r"\n{3,}")


def compact_json(text: str) -> str:
    """Return a JSON object or array without the space between its parts, each of which stays letter by
    letter; another text as it is."""
    bare = text.strip()
    if bare[:1] not in ("{", "[") or not _is_json(bare):
        return text
    return BETWEEN_PARTS.sub(lambda found: found[1] or "", bare)


def compact_space(text: str) -> str:
    """Return a text without the space at the ends of its lines, and with one empty line in the place of
    several. Space at the beginning of lines and within them may say something, and stays."""
    lines = "\n".join(line.rstrip(" \t\r") for line in text.split("\n"))
    return BLANK_LINES.sub("\n\n", lines).strip("\n")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
