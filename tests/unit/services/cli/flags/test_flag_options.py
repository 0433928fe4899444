"""What `penstock flags` takes, and what it refuses."""

from __future__ import annotations

import pytest

from services.cli.flags.flag_options import Assignment, build_flags_parser

REASON = ("--reason", "a test")


def test_a_change_for_a_part_of_the_requests_is_understood() -> None:
    words = [
        "set",
        "passage_order=best_first",
        "--share",
        "5%",
        "--tenant",
        "acme",
        "--model",
        "m",
        "--for",
        "12h",
        "--guard",
    ]
    args = build_flags_parser().parse_args([*words, "p99_ttft<300ms,errors<1%", *REASON])
    assert args.assignment == Assignment("passage_order", "best_first")
    assert (args.share, args.tenant, args.model, args.lasts_s) == (0.05, "acme", "m", 12 * 3600)
    assert (args.guard, args.yes) == ("p99_ttft<300ms,errors<1%", False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "rerank", *REASON), "is not NAME=VALUE"),
        (("set", "rerank=false"), "--reason"),
        (("set", "rerank=false", "--share", "0%", *REASON), "above 0 and up to all"),
        (("set", "rerank=false", "--share", "101%", *REASON), "above 0 and up to all"),
        (("set", "rerank=false", "--for", "91d", *REASON), "up to 90d"),
        (("set", "rerank=false", "--for", "soon", *REASON), "is no time"),
        (("set", "rerank=false", "--guard", "fast", *REASON), "write p99_ttft<300ms"),
        (("verdict", "1", "--metric", "joy"), "invalid choice"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_flags_parser().parse_args(words)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_every_command_finds_the_bus_and_can_speak_json() -> None:
    for words in (["list"], ["history"], ["diff"], ["verdict", "1"], ["rollback", "1", *REASON]):
        assert build_flags_parser().parse_args([*words, "--json", "--nats-url", "nats://h:1"]).json
