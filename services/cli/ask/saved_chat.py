"""A conversation of `penstock chat` as a file: /save writes it, /load reads it.

JSON: {"penstock_chat": 1, "model", "system", "messages": [{"role", "content"}]}, "" where there is none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest, TooLarge
from shared.files.atomic_write import write_secret

FORMAT = 1
MAX_CHAT_BYTES = 16 << 20
ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class SavedChat:
    """`messages` are (role, text), of user and assistant."""

    model: str
    system: str
    messages: tuple[tuple[str, str], ...]


def save_chat(path: Path, chat: SavedChat) -> None:
    """Write it for its user alone. Raises InvalidRequest where a file that is no conversation would be lost,
    or that cannot be written."""
    if path.exists():
        try:
            load_chat(path)
        except (InvalidRequest, TooLarge) as error:
            raise InvalidRequest(
                f"{path} is there and is no saved conversation: name another file"
            ) from error
    messages = [{"role": role, "content": text} for role, text in chat.messages]
    told = {"penstock_chat": FORMAT, "model": chat.model, "system": chat.system, "messages": messages}
    try:
        write_secret(path, json.dumps(told, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written ({error.strerror or error})") from error


def load_chat(path: Path) -> SavedChat:
    """Raises InvalidRequest, and TooLarge over MAX_CHAT_BYTES."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CHAT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror or error})") from error
    if len(data) > MAX_CHAT_BYTES:
        raise TooLarge(f"{path} has more than {MAX_CHAT_BYTES} bytes")
    try:
        chat = _chat_of(json.loads(data))
    except (ValueError, RecursionError):
        chat = None
    if chat is None:
        raise InvalidRequest(f"{path} is no conversation that /save wrote")
    return chat


def _chat_of(told: Any) -> SavedChat | None:
    if not isinstance(told, dict) or told.get("penstock_chat") != FORMAT:
        return None
    model, system, messages = (told.get(name) for name in ("model", "system", "messages"))
    if not isinstance(model, str) or not isinstance(system, str) or not isinstance(messages, list):
        return None
    rows = [(row.get("role"), row.get("content")) for row in messages if isinstance(row, dict)]
    if len(rows) < len(messages) or not all(role in ROLES and isinstance(text, str) for role, text in rows):
        return None
    return SavedChat(model, system, tuple((str(role), str(text)) for role, text in rows))
