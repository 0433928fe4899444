"""Where the time of a request went, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.cli.view.request_words import MIN_SAMPLES, SLOW_BY_US, request_words, slow_phases
from shared.messages import AttemptAccount, PhaseAccount, RequestAccount, UsageRow


def phase(name: str, duration_us: int, *, p50_us: int = 0, p95_us: int = 0, at: str = "") -> PhaseAccount:
    return PhaseAccount(
        name, at, duration_us, duration_us, per_token=False, samples=20, p50_us=p50_us, p95_us=p95_us
    )


ACCOUNT = RequestAccount(
    request_id="gateway-0.abc",
    client_id="theirs",
    trace_id="4b",
    tenant="acme",
    model="m",
    outcome="finished",
    error="",
    began_unix_us=0,
    ttft_us=140_000,
    total_us=200_000,
    prompt_tokens=40,
    cached_tokens=16,
    output_tokens=11,
    band="00128",
    compared=20,
    phases=(
        phase("prefill.queue", 120_000, p50_us=1000, p95_us=5000, at="prefill-1"),
        phase("prefill.compute", 20_000, p50_us=19_000, p95_us=25_000, at="prefill-1"),
        PhaseAccount(
            "decode", "decode-0", 60_000, 6000, per_token=True, samples=20, p50_us=5900, p95_us=7000
        ),
    ),
    attempts=(AttemptAccount(1, ("prefill-1", "decode-0"), 0, 200_000, ""),),
)


def test_the_slow_hop_is_named_with_what_is_usual() -> None:
    words = request_words(ACCOUNT)
    assert (
        "request gateway-0.abc (theirs) of acme to m, 40 prompt tokens (16 cached) and 11 generated" in words
    )
    assert "took 200.0 ms, its first token after 140.0 ms; finished" in words
    assert "most of it, 120.0 ms or 60%, was prefill.queue at prefill-1" in words
    assert (
        "slow was prefill.queue at prefill-1: 120.0 ms, where half of 20 other requests of up to 128 prompt "
        "tokens take up to 1.0 ms and 95 of 100 up to 5.0 ms"
    ) in words
    assert words.count("slow was") == 1


def test_slow_decoding_is_said_by_the_token_and_counts_for_all_of_them() -> None:
    decode = replace(ACCOUNT.phases[2], compared_us=7500)
    account = replace(ACCOUNT, phases=(phase("route", 9000, p50_us=100, p95_us=200), decode))
    assert [each.name for each in slow_phases(account)] == ["decode", "route"]  # 16 ms more, and 9
    assert "decode at decode-0: 7.5 ms per token" in request_words(account)


@pytest.mark.parametrize(("extra_us", "slow"), [(SLOW_BY_US, False), (SLOW_BY_US + 1, True)])
def test_a_little_more_than_usual_is_not_slow(extra_us: int, slow: bool) -> None:
    account = replace(ACCOUNT, phases=(phase("route", 100 + extra_us, p50_us=100, p95_us=101),))
    assert bool(slow_phases(account)) is slow
    assert ("nothing was slow" in request_words(account)) is not slow


def test_too_few_others_say_nothing_of_what_is_usual() -> None:
    account = replace(ACCOUNT, compared=MIN_SAMPLES - 1)
    words = request_words(account)
    assert f"the gateway knows {MIN_SAMPLES - 1} other requests of up to 128 prompt tokens" in words
    assert "slow was" not in words


def test_a_phase_that_few_others_had_is_not_called_slow() -> None:
    few = replace(ACCOUNT.phases[0], samples=MIN_SAMPLES - 1)
    assert slow_phases(replace(ACCOUNT, phases=(few,))) == []


def test_a_moved_request_says_from_where_and_why() -> None:
    lost = AttemptAccount(1, ("prefill-0", "decode-0"), 1000, 31_000, "unavailable")
    words = request_words(replace(ACCOUNT, attempts=(lost, AttemptAccount(2, ("decode-1",), 31_000, 9, ""))))
    assert "attempt 1 on prefill-0, decode-0 was given up after 30.0 ms (unavailable)" in words
    assert "attempt 2" not in words


def test_a_request_that_failed_before_any_token_says_so() -> None:
    failed = replace(
        ACCOUNT,
        outcome="failed",
        error="decode: no room\x1b[2J",
        ttft_us=0,
        phases=(),
        band="inf",
        compared=0,
    )
    words = request_words(failed)
    assert "no token came; failed: decode: no room\\x1b[2J" in words
    assert "no time was measured" in words
    assert "other requests of the longest prompts" in words


def test_the_choice_of_a_model_is_said_where_there_was_one() -> None:
    chosen = "auto is large by rule paying; small was shed"
    assert chosen not in request_words(ACCOUNT)
    assert chosen in request_words(replace(ACCOUNT, model_choice=chosen)).splitlines()


def test_changes_of_settings_are_said_where_it_had_some() -> None:
    assert "of `penstock flags`" not in request_words(ACCOUNT)
    words = request_words(replace(ACCOUNT, flags=("1@gateway-0", "3@gateway-1")))
    assert "it had 1@gateway-0, 3@gateway-1 of `penstock flags`" in words.splitlines()


def test_a_shared_computation_is_said() -> None:
    words = request_words(replace(ACCOUNT, coalesced_with="gateway-0.first", coalesced_tokens=9))
    assert (
        "9 of its tokens were computed for gateway-0.first, which asked for the same at the same time"
        in words
    )
    assert "computed for" not in request_words(ACCOUNT)


def test_what_engines_have_spent_is_said() -> None:
    used = UsageRow("acme", "m", *([0] * 14))
    told = replace(used, prefill_core_us=300_000, decode_core_us=200_000, kv_kib_s=2048)
    words = request_words(replace(ACCOUNT, usage=(told,)))
    assert "it took 500.0 ms of a core, 2048 KiB of KV for a second" in words
    assert "it took" not in request_words(replace(ACCOUNT, usage=(used,)))


def test_what_was_expected_of_its_answer_is_said_where_somebody_could_tell() -> None:
    told = request_words(replace(ACCOUNT, expected_tokens=40, most_expected_tokens=120))
    assert "answers like it have 40 tokens in the mean, and 95 of 100 no more than 120" in told
    assert "answers like it" not in request_words(ACCOUNT)
