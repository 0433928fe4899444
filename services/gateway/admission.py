"""Whether a new request is taken: decided at once, from what the fleet says of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shared.errors import Overloaded
from shared.messages import Heartbeat

FULL_RETRY_MS = 500
"""How long a client should wait when all sessions are in use and none has ended yet to tell from."""


def check_room(live_sessions: int, max_sessions: int, wait_s: float) -> None:
    """Raise Overloaded when this gateway has no session left; `wait_s` is when it may have one, 0 unknown."""
    if live_sessions >= max_sessions:
        raise Overloaded(
            f"all {max_sessions} sessions of this gateway are in use: retry later or use another gateway",
            hop="gateway",
            retry_after_ms=math.ceil(wait_s * 1000) or FULL_RETRY_MS,
        )


def check_wait(wait_s: float, remaining_s: float) -> None:
    """Raise Overloaded when the request's turn at decode cannot come within `remaining_s`."""
    if wait_s > remaining_s:
        raise Overloaded(
            f"{wait_s:.1f} s of requests wait for decode and {remaining_s:.1f} s are left: "
            "retry later or allow a longer ttft_deadline_ms",
            hop="decode",
            retry_after_ms=max(1, math.ceil((wait_s - remaining_s) * 1000)),
        )


def predict_ttft_s(prefills: Sequence[Heartbeat], prompt_tokens: int) -> float:
    """Seconds to the first token on the least busy prefill instance, seen from its queue and measured rate.

    An idle instance, or one that has not measured its rate, promises nothing: 0. So does an empty fleet,
    which is a matter of waiting for an instance.
    """
    return min((_wait_s(prefill, prompt_tokens) for prefill in prefills), default=0.0)


def check_ttft(prefills: Sequence[Heartbeat], prompt_tokens: int, remaining_s: float) -> None:
    """Raise Overloaded with a retry hint when the first token cannot come within `remaining_s`."""
    predicted_s = predict_ttft_s(prefills, prompt_tokens)
    if predicted_s > remaining_s:
        raise Overloaded(
            f"the first token would take about {predicted_s:.1f} s and {remaining_s:.1f} s are left: "
            "retry later or allow a longer ttft_deadline_ms",
            hop="prefill",
            retry_after_ms=max(1, math.ceil((predicted_s - remaining_s) * 1000)),
        )


def _wait_s(prefill: Heartbeat, prompt_tokens: int) -> float:
    if prefill.tokens_per_s <= 0 or prefill.queued_tokens <= 0:
        return 0.0
    return (prefill.queued_tokens + prompt_tokens) / prefill.tokens_per_s
