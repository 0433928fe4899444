"""Budgets of the prompt as options of `penstock ask`."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.ask_request import parse_request


def test_without_options_the_budgets_are_the_gateways() -> None:
    assert not parse_request(["hi"])[1].HasField("trimming")


def test_every_option_arrives() -> None:
    argv = ["hi", "--max-passage-tokens", "120", "--passage-share", "0.5", "--no-duplicates"]
    argv += [
        "--max-prompt-tokens",
        "900",
        "--max-summary-tokens",
        "90",
        "--max-tool-tokens",
        "400",
        "--compact",
    ]
    assert parse_request(argv)[1].trimming == pb.Trimming(
        max_passage_tokens=120,
        passage_share=0.5,
        duplicates=True,
        max_prompt_tokens=900,
        max_summary_tokens=90,
        max_tool_tokens=400,
        compact=True,
    )
    assert parse_request(["hi", "--no-trimming"])[1].trimming == pb.Trimming(off=True)


@pytest.mark.parametrize("share", ["0", "1.5", "nan", "half"])
def test_what_is_no_share_is_refused(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_request(["hi", "--passage-share", share])
    assert "is no share" in capsys.readouterr().err
