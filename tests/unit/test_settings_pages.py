"""The tables of settings on the services' pages are those of the code.

With PENSTOCK_WRITE_PAGES=1 the tables are written instead of compared.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from services.decode.config import DecodeConfig
from services.detokenizer.config import DetokenizerConfig
from services.gateway.config import GatewayConfig
from services.prefill.config import PrefillConfig
from services.retriever.config import RetrieverConfig
from services.speculator.config import SpeculatorConfig
from services.tokenizer.config import TokenizerConfig
from shared.config.fields import ServiceConfig
from shared.worker.config import EngineServiceConfig
from tests.support.data import REPOSITORY
from tests.support.settings_table import settings_table

TABLES: list[tuple[str, type[Any], type[Any] | None]] = [
    ("services/README.md", ServiceConfig, None),
    ("services/README.md", EngineServiceConfig, ServiceConfig),
    ("services/gateway/README.md", GatewayConfig, ServiceConfig),
    ("services/tokenizer/README.md", TokenizerConfig, ServiceConfig),
    ("services/retriever/README.md", RetrieverConfig, ServiceConfig),
    ("services/prefill/README.md", PrefillConfig, EngineServiceConfig),
    ("services/decode/README.md", DecodeConfig, EngineServiceConfig),
    ("services/speculator/README.md", SpeculatorConfig, EngineServiceConfig),
    ("services/detokenizer/README.md", DetokenizerConfig, ServiceConfig),
]


@pytest.mark.parametrize(("page", "config", "base"), TABLES, ids=[config.__name__ for _, config, _ in TABLES])
def test_a_page_has_the_settings_of_the_code(page: str, config: type[Any], base: type[Any] | None) -> None:
    path = REPOSITORY / page
    start, end = f"<!-- settings of {config.__name__} -->\n", "<!-- end of settings -->"
    parts = re.fullmatch(
        f"(.*{re.escape(start)})(.*?)({re.escape(end)}.*)", path.read_text("utf-8"), re.DOTALL
    )
    assert parts
    before, table, behind = parts.groups()
    made = f"\n{settings_table(config, base)}\n"
    if os.environ.get("PENSTOCK_WRITE_PAGES") == "1":
        path.write_text(f"{before}{made}{behind}", "utf-8")
    else:
        assert table == made
