"""The table of what can be changed at run time, and its page.

With PENSTOCK_WRITE_PAGES=1 the page's table is written instead of compared.
"""

from __future__ import annotations

import os
import re

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.flags.flag_settings import FLAG_SETTINGS, described_settings, flag_value
from shared.errors import InvalidRequest
from tests.support.data import REPOSITORY

PAGE = REPOSITORY / "services" / "gateway" / "FLAGS.md"
HEAD = "| setting | usual | values | when a request reads it |\n|---|---|---|---|\n"


def table() -> str:
    rows = [
        f"| `{each.name}` | {each.value} | {each.allowed} | {FLAG_SETTINGS[each.name]} |\n"
        for each in described_settings(GatewayConfig())
    ]
    return HEAD + "".join(rows)


def test_the_page_has_the_settings_of_the_code() -> None:
    found = re.fullmatch(
        r"(.*<!-- settings of flags -->\n)(.*?)(<!-- end of flags -->.*)", PAGE.read_text("utf-8"), re.DOTALL
    )
    assert found
    before, there, behind = found.groups()
    made = f"\n{table()}\n"
    if os.environ.get("PENSTOCK_WRITE_PAGES") == "1":
        PAGE.write_text(f"{before}{made}{behind}", "utf-8")
    else:
        assert there == made


@pytest.mark.parametrize("setting", sorted(FLAG_SETTINGS))
def test_what_is_set_in_the_configuration_can_be_set_at_run_time(setting: str) -> None:
    (usual,) = (each for each in described_settings(GatewayConfig()) if each.name == setting)
    assert flag_value(setting, usual.value).value == getattr(GatewayConfig(), setting)


@pytest.mark.parametrize(
    ("setting", "text", "why"),
    [
        ("grpc_port", "1", "cannot be changed at run time: there are cache_mode, "),
        ("local_prefill_tokens", "-1", "local_prefill_tokens is -1; it must be a whole number from 0"),
        ("local_prefill_tokens", "many", "local_prefill_tokens is 'many'; it must be a whole number"),
        ("rerank", "perhaps", "must be true or false"),
        ("least_degradation", "new_requests", "must be one of none, rerank"),
    ],
)
def test_what_cannot_be_set_is_refused_with_what_can(setting: str, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        flag_value(setting, text)
    assert why in refused.value.message
