"""Callbacks of KvSender and KvReceiver about the progress of a transfer; the classes say when and how
often."""

from __future__ import annotations

from collections.abc import Callable

from shared.errors import PenstockError
from shared.kv.transfer_key import TransferKey

OnReleased = Callable[[TransferKey], None]
"""(key)."""

OnFailed = Callable[[TransferKey, PenstockError], None]
"""(key, why the KV did not get there)."""

OnComplete = Callable[[TransferKey, tuple[int, ...], str, int], None]
"""(key, token_ids that prefill sampled, finish, exposed_us)."""
