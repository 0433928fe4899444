"""Name transfers, and say what their owner is told of them; sender and receiver say when and how often."""

from __future__ import annotations

from collections.abc import Callable

from shared.errors import PenstockError

TransferKey = tuple[str, int]
"""(request_id, epoch): the name of a transfer on both sides before its number is known."""

OnReleased = Callable[[TransferKey], None]
"""(key)."""

OnSent = Callable[[TransferKey], None]
"""(key): all that there is of a transfer that grows has been sent, and more may be said of it."""

OnFailed = Callable[[TransferKey, PenstockError], None]
"""(key, why the KV did not get there)."""

OnComplete = Callable[[TransferKey, tuple[int, ...], str, int], None]
"""(key, token_ids that prefill sampled, finish, exposed_us)."""
