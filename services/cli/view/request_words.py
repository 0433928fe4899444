"""Say in words where the time of a request went, and which part of it was slow."""

from __future__ import annotations

from services.cli.view.table import table
from services.cli.view.terminal_text import escaped_controls
from services.cli.view.trimmed_words import trimmed_words
from shared.messages import PhaseAccount, RequestAccount

MIN_SAMPLES = 8
"""Fewer requests like it say nothing of what is usual."""
SLOW_BY_US = 1000
"""A phase that took so little more than usual is not called slow, whatever the percentiles say."""
HEAD = ("phase", "at", "took ms", "share", "compared ms", "usual p50", "usual p95")
HERE = "the gateway"


def request_words(account: RequestAccount) -> str:
    """Return sentences, then a table of the phases in which something passed."""
    sentences = [
        _summary(account),
        *([account.model_choice] if account.model_choice else []),
        *([f"it had {', '.join(account.flags)} of `penstock flags`"] if account.flags else []),
        _longest(account),
        *([f"left out of its prompt: {trimmed_words(account.trimmed)}"] if account.trimmed else []),
        *_expected(account),
        *_shares(account),
        *_spent(account),
        *_moves(account),
        *_verdict(account),
    ]
    rows = [_row(phase, account) for phase in account.phases if phase.duration_us]
    return escaped_controls("\n".join([*sentences, "", table(HEAD, rows)]))


def slow_phases(account: RequestAccount) -> list[PhaseAccount]:
    """Return the phases that took longer than for 95 of 100 others, by how much time that cost."""
    slow = [phase for phase in account.phases if phase.samples >= MIN_SAMPLES and _is_slow(phase, account)]
    return sorted(slow, key=lambda phase: _excess_us(phase, account), reverse=True)


def _is_slow(phase: PhaseAccount, account: RequestAccount) -> bool:
    return phase.compared_us > phase.p95_us and _excess_us(phase, account) > SLOW_BY_US


def _excess_us(phase: PhaseAccount, account: RequestAccount) -> int:
    """Return how much longer the phase took than it does for half of the others, all its tokens together."""
    times = max(1, account.output_tokens - 1) if phase.per_token else 1
    return (phase.compared_us - phase.p50_us) * times


def _summary(account: RequestAccount) -> str:
    of = f" of {account.tenant}" if account.tenant else ""
    named = f" ({account.client_id})" if account.client_id else ""
    first = f"its first token after {_ms(account.ttft_us)}" if account.ttft_us else "no token came"
    ended = f"{account.outcome}: {account.error}" if account.error else account.outcome
    return (
        f"request {account.request_id}{named}{of} to {account.model or 'no model yet'}, "
        f"{account.prompt_tokens} prompt tokens ({account.cached_tokens} cached) and {account.output_tokens} "
        f"generated, took {_ms(account.total_us)}, {first}; {ended}"
    )


def _longest(account: RequestAccount) -> str:
    phase = max(account.phases, key=lambda each: each.duration_us, default=None)
    if phase is None or not phase.duration_us:
        return "no time was measured in any phase"
    return f"most of it, {_ms(phase.duration_us)} or {_share(phase, account)}, was {_named(phase)}"


def _expected(account: RequestAccount) -> list[str]:
    """Say how long its answer was expected to get, where answers like it were known."""
    if not account.most_expected_tokens:
        return []
    return [
        f"answers like it have {account.expected_tokens} tokens in the mean, and 95 of 100 no more than "
        f"{account.most_expected_tokens}: by that it was queued and placed"
    ]


def _shares(account: RequestAccount) -> list[str]:
    if not account.coalesced_with:
        return []
    return [
        f"{account.coalesced_tokens} of its tokens were computed for {account.coalesced_with}, which asked "
        "for the same at the same time"
    ]


def _spent(account: RequestAccount) -> list[str]:
    """Say what it has taken of engines, where they have said so."""
    told = []
    for used in account.usage:
        if core_us := used.prefill_core_us + used.decode_core_us:
            told.append(f"{_ms(core_us)} of a core")
        if device_us := used.prefill_device_us + used.decode_device_us:
            told.append(f"{_ms(device_us)} of a GPU")
        if used.kv_kib_s:
            told.append(f"{used.kv_kib_s} KiB of KV for a second")
    return [f"it took {', '.join(told)}"] if told else []


def _moves(account: RequestAccount) -> list[str]:
    return [
        f"attempt {attempt.epoch} on {', '.join(attempt.workers)} was given up after "
        f"{_ms(attempt.end_us - attempt.start_us)} ({attempt.why}), and the request moved"
        for attempt in account.attempts
        if attempt.why
    ]


def _verdict(account: RequestAccount) -> list[str]:
    """Say which hop was slow, or that none was, or why that cannot be said."""
    like = f"requests of {_band(account)}"
    if account.compared < MIN_SAMPLES:
        return [
            f"what is usual cannot be said yet: the gateway knows {account.compared} other {like}, and "
            f"{MIN_SAMPLES} are needed"
        ]
    slow = slow_phases(account)
    if not slow:
        return [f"nothing was slow: each phase took what it takes 95 of 100 of {account.compared} {like}"]
    return [
        f"slow was {_named(phase)}: {_ms(phase.compared_us)}{_per(phase)}, where half of {phase.samples} "
        f"other {like} take up to {_ms(phase.p50_us)} and 95 of 100 up to {_ms(phase.p95_us)}"
        for phase in slow
    ]


def _band(account: RequestAccount) -> str:
    edge = account.band
    return f"up to {int(edge)} prompt tokens" if edge.isdecimal() else "the longest prompts"


def _named(phase: PhaseAccount) -> str:
    return f"{phase.name} at {phase.instance or HERE}"


def _per(phase: PhaseAccount) -> str:
    return " per token" if phase.per_token else ""


def _row(phase: PhaseAccount, account: RequestAccount) -> tuple[str, ...]:
    known = phase.samples >= MIN_SAMPLES
    return (
        phase.name,
        phase.instance or HERE,
        f"{phase.duration_us / 1e3:.2f}",
        _share(phase, account),
        f"{phase.compared_us / 1e3:.2f}{_per(phase)}",
        f"{phase.p50_us / 1e3:.2f}" if known else "-",
        f"{phase.p95_us / 1e3:.2f}" if known else "-",
    )


def _share(phase: PhaseAccount, account: RequestAccount) -> str:
    return f"{phase.duration_us / max(1, account.total_us):.0%}"


def _ms(us: int) -> str:
    return f"{us / 1e3:.1f} ms" if us < 1_000_000 else f"{us / 1e6:.2f} s"
