"""Changes of settings for tests."""

from __future__ import annotations

from typing import Any

from shared.messages import FlagChange

MADE_US = 1_700_000_000_000_000


def flag_change(number: int = 1, origin: str = "gateway-0", **said: Any) -> FlagChange:
    """Return a change that sets something, unless it is said to roll one back."""
    usual = {} if said.get("rolls_back") else {"setting": "local_prefill_tokens", "value": "0"}
    what = {"made_unix_us": MADE_US + number, "author": "ada", "reason": "a test", **usual, **said}
    return FlagChange(number, origin, **what)
