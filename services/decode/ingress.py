"""The seam between the decode actor and the KV receiver."""

from __future__ import annotations

from collections.abc import Callable

from shared import messages
from shared.engine import Engine
from shared.errors import PenstockError
from shared.kv.receiver import KvReceiver

KV_MESSAGES = (messages.KvReady, messages.KvDone, messages.KvAbort, messages.KvAbortAck)
"""What prefill workers say about transfers."""

KvKey = tuple[str, int]
"""request_id, epoch."""

OnComplete = Callable[[KvKey, tuple[int, ...], str, int], None]
"""(key, token_ids that prefill sampled, finish, exposed_us)."""
OnFailed = Callable[[KvKey, PenstockError], None]
OnReleased = Callable[[KvKey], None]
MakeReceiver = Callable[[Engine, OnComplete, OnFailed, OnReleased], KvReceiver]
