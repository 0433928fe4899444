"""Whether an earlier answer will do: what a request says, else its key, else the gateway."""

from __future__ import annotations

OFF, EXACT, SEMANTIC = "off", "exact", "semantic"
CACHE_MODES = (OFF, EXACT, SEMANTIC)
