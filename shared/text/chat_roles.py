"""The roles that may speak in a chat."""

from __future__ import annotations

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles that a client may send. Where a template knows no developer its system says it; function is
another word for tool."""
