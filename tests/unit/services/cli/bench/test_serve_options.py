"""Options of a load: what each takes at its edges, and what is refused with a sentence."""

from __future__ import annotations

import argparse

import pytest

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.run.rate_sweep import SweepPlan
from services.cli.bench.serve_options import (
    MAX_CLIENTS,
    MAX_PROCESSES,
    MAX_RATE,
    MAX_SPEED,
    build_bench_serve_parser,
    checked_serve_args,
    conduct_shares,
    named_sources,
)


def parse(*argv: str) -> argparse.Namespace:
    return checked_serve_args(build_bench_serve_parser(), argv)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--concurrency", "0"), "not a whole number from 1"),
        (("--concurrency", str(MAX_CLIENTS + 1)), f"from 1 to {MAX_CLIENTS}"),
        (("--processes", str(MAX_PROCESSES + 1)), f"from 1 to {MAX_PROCESSES}"),
        (("--rate", "0"), "is not between"),
        (("--rate", str(MAX_RATE + 1)), f"and {MAX_RATE:g}"),
        (("--rate", "nan"), "is not a finite number"),
        (("--speed", str(MAX_SPEED + 1)), f"and {MAX_SPEED:g}"),
        (("--variation", "21"), "is not between 0 and 20"),
        (("--rate", "1", "--concurrency", "2"), "not allowed with argument"),
        (("--sweep", "4"), "write FROM-TO as 1-32"),
        (("--sweep", "4-2"), "it ends below its beginning"),
        (("--sweep", "1-4x1"), "is not between 1.01 and 100"),
        (("--source", "word"), "write synthetic, mooncake:FILE"),
        (("--source", "mooncake"), "write synthetic, mooncake:FILE"),
        (("--source", "synthetic:x"), "write synthetic, mooncake:FILE"),
        (("--source", "0*synthetic"), "is not between"),
        (("--input-tokens", "x"), "write 256, 128-512"),
        (("--slo", "ttft<1"), "write ttft_p99<300ms"),
        (("--slo", "chats:ttft_p99<1s"), "--slo names chats, and the sources are synthetic"),
        (("--source", "a=synthetic", "--source", "a=prompts:x"), "two sources have one name"),
        (("--source", "1=synthetic"), "write synthetic, mooncake:FILE"),
        (("--useful", "word"), "write sentence, json, thinking or regex:PATTERN"),
        (("--cancel", "5"), "write 5%, or SHARE@AMOUNT as 5%@8"),
        (("--cancel", "60%", "--stall", "50%"), "over 100 % together"),
        (("--interface", "completions", "--schema", "5%"), "completions have no schemas"),
        (("--rows",), "--rows goes with --json"),
        (("--interface", "responses"), "needs --url"),
        (("--warmup", "30", "--duration", "30"), "--warmup 30 leaves nothing of --duration 30"),
    ],
)
def test_what_cannot_be_is_refused(
    argv: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(*argv)
    assert raised.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_limits_are_taken_at_their_edges() -> None:
    taken = parse(
        "--concurrency", str(MAX_CLIENTS), "--processes", str(MAX_PROCESSES), "--speed", str(MAX_SPEED)
    )
    assert (taken.concurrency, taken.processes, taken.speed) == (MAX_CLIENTS, MAX_PROCESSES, MAX_SPEED)
    assert parse("--rate", str(MAX_RATE)).rate == MAX_RATE
    assert parse("--warmup", "29.9", "--duration", "30").warmup == 29.9


def test_sweeps_sources_and_shares_are_read() -> None:
    args = parse(
        "--sweep", "1-32x2", "--source", "2.5*synthetic", "--source", "azure:a:b.csv", "--stall", "2%@9"
    )
    assert args.sweep == SweepPlan(1.0, 32.0, 2.0)
    assert args.source == [(2.5, "synthetic", "", ""), (1.0, "azure", "a:b.csv", "")]
    (share,) = conduct_shares(args)
    assert (share.conduct, share.share, share.amount) == (Conduct.STALL, 0.02, 9)
    assert parse("--sweep", "1-2").sweep.factor == 1.5


def test_sources_are_told_apart_by_their_names() -> None:
    words = ("prompts:a=b", "chats=2*prompts:a", "prompts:c", "synthetic")
    args = parse(*(each for word in words for each in ("--source", word)), "--slo", "prompts-2:errors<1%")
    assert [(name, given.weight, given.file) for name, given in named_sources(args)] == [
        ("prompts", 1.0, "a=b"),
        ("chats", 2.0, "a"),
        ("prompts-2", 1.0, "c"),
        ("synthetic", 1.0, ""),
    ]


def test_the_help_is_whole() -> None:
    assert "ttft_p99<300ms" in build_bench_serve_parser().format_help()
