"""Every metric is made in one module, which knows all their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[4]
HOME = REPOSITORY / "shared" / "telemetry" / "metrics.py"
SHOWS = {"CONTENT_TYPE_LATEST", "generate_latest"}
"""What may be imported elsewhere: it shows metrics and makes none."""


def makers(source: str) -> Iterator[str]:
    """What a module imports of prometheus_client that could make a metric; the whole package can."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "prometheus_client")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "prometheus_client":
            yield from (alias.name for alias in node.names if alias.name not in SHOWS)


def test_no_metric_is_made_outside_of_the_metrics_module() -> None:
    paths = [path for top in ("services", "shared") for path in (REPOSITORY / top).rglob("*.py")]
    assert HOME in paths
    found = {path.relative_to(REPOSITORY).as_posix(): list(makers(path.read_text("utf-8"))) for path in paths}
    assert {name: made for name, made in found.items() if made} == {
        HOME.relative_to(REPOSITORY).as_posix(): ["Counter", "Gauge", "Histogram"]
    }


@pytest.mark.parametrize(
    "source",
    [
        "from prometheus_client import Counter",
        "from prometheus_client import Histogram as H, generate_latest",
        "from prometheus_client import *",
        "import prometheus_client",
        "import prometheus_client as p",
        "from prometheus_client.metrics import Gauge",
        "def make():\n    from prometheus_client import Summary",
    ],
)
def test_every_way_to_make_a_metric_is_seen(source: str) -> None:
    assert len(list(makers(source))) == 1


@pytest.mark.parametrize(
    "source", ["from prometheus_client import generate_latest", "from collections import Counter"]
)
def test_what_makes_no_metric_is_free(source: str) -> None:
    assert list(makers(source)) == []
