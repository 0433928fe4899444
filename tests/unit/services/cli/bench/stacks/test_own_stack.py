"""What is told of the settings of a stack that a measurement starts."""

from __future__ import annotations

import pytest

from services.cli.bench.stacks.own_stack import StackPlan, changed_settings, stack_settings


def test_settings_that_are_no_defaults_are_told() -> None:
    report = {
        "decode": {
            "threads": {"value": 2, "source": "--threads", "kind": "command line"},
            "ngram_tokens": {"value": 4, "source": "", "kind": "default"},
        },
        "prefill": {},
    }
    assert changed_settings(report) == {"decode": {"threads": 2}, "prefill": {}}


async def test_a_stack_s_own_code_tells_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DECODE_NGRAM_TOKENS", "0")
    settings = await stack_settings(
        StackPlan(("--decode", "2"), variables={"PENSTOCK_GATEWAY_COALESCE": "false"})
    )
    assert settings is not None
    assert settings["decode"]["ngram_tokens"] == 0
    assert settings["gateway"]["coalesce"] is False
    assert await stack_settings(StackPlan(("--no-such-option",))) is None
