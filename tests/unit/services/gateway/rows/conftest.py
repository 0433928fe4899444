"""Tests of the table of rows need its extension, which a machine without a compiler has not."""

from __future__ import annotations

import pytest

from services.gateway.rows.stream_table import has_stream_table


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not has_stream_table():
        for item in items:
            if "/unit/services/gateway/rows/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="the table of rows was not built"))
