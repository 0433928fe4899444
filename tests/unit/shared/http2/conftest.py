"""Tests of HTTP/2 need its codec: without a compiler there is none, and gRPC's edge is grpcio's."""

from __future__ import annotations

import pytest

from shared.http2.native_codec import has_codec


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not has_codec():
        for item in items:
            if "/unit/shared/http2/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="HTTP/2's codec was not built"))
