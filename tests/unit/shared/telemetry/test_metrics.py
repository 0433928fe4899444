"""Every metric is made in one module, which knows all their names and who shows which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from shared.roles import ROLES
from shared.telemetry import metrics
from shared.telemetry.metrics import COMMON, FAMILIES, MetricFamily, RoleMetrics

REPOSITORY = Path(__file__).resolve().parents[4]
HOME = REPOSITORY / "shared" / "telemetry" / "metrics.py"
SHOWS = {"CONTENT_TYPE_LATEST", "generate_latest", "text_string_to_metric_families"}
"""What may be imported elsewhere: it shows metrics or reads those of others, and makes none."""


def makers(source: str) -> Iterator[str]:
    """What a module imports of prometheus_client that could make a metric; the whole package can."""
    if "prometheus_client" not in source:
        return
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
        HOME.relative_to(REPOSITORY).as_posix(): [
            "REGISTRY",
            "Counter",
            "Gauge",
            "Histogram",
            "disable_created_metrics",
            "Metric",
            "Collector",
        ]
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


# ---- who shows what -------------------------------------------------------------------------------------


def module_file(name: str) -> Path | None:
    path = REPOSITORY.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def read(path: Path) -> tuple[list[Path], set[str]]:
    """What a module imports of ours, and the names in the metrics module of what it counts."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    counts = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "metrics"
        and node.attr.isupper()
    }
    return list(filter(None, map(module_file, names))), counts


def counted(role: str) -> set[str]:
    """The names in the metrics module of what any module counts that a service's program imports."""
    waiting, seen = [REPOSITORY / "services" / role / "__main__.py"], set()
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or path == HOME:
            continue
        seen.add(path)
        imports, counts = read(path)
        waiting.extend(imports)
        found |= counts
    return found


NEVER_COUNTED = {"speculator": {"HOP_SECONDS", "GRAMMAR_TRIALS"}, "gateway": {"SERVED_MODEL"}}
"""Drafts have no grammars, though the module that compiles them comes along; a gateway serves all models."""


@pytest.mark.parametrize("role", ROLES)
def test_a_service_shows_what_it_counts_and_nothing_else(role: str) -> None:
    names = {id(value): name for name, value in vars(metrics).items() if name.isupper()}
    assert {names[id(family)] for family in (*COMMON, *FAMILIES[role])} == counted(role) - NEVER_COUNTED.get(
        role, set()
    )


def test_what_a_service_shows_are_its_own_families_and_those_of_any_process() -> None:
    shown = generate_latest(RoleMetrics("tokenizer")).decode()
    families = set(re.findall(r"^# TYPE (\w+) ", shown, re.MULTILINE))
    assert "penstock_queue_depth" in families
    assert "penstock_time_to_first_token_seconds" not in families
    assert {name for name in families if not name.startswith("penstock_")}


def test_no_series_says_when_another_was_created() -> None:
    metrics.SHED.labels(hop="gateway", reason="test").inc()
    shown = generate_latest(RoleMetrics("gateway")).decode()
    assert 'penstock_shed_total{hop="gateway",reason="test"}' in shown
    assert "_created" not in shown


def test_lengths_of_prompts_sort_as_numbers_and_as_text() -> None:
    labels = [metrics.prompt_bucket(edge) for edge in (*metrics.PROMPT_EDGES_TOKENS, 10**9)]
    assert labels == sorted(labels) == sorted(labels, key=float)


def test_every_family_is_shown_by_somebody() -> None:
    made = {value for name, value in vars(metrics).items() if name.isupper() and hasattr(value, "describe")}
    assert made == {*COMMON, *(family for families in FAMILIES.values() for family in families)}


# ---- the names in the documents -------------------------------------------------------------------------

DOCUMENTS = [
    path
    for path in sorted(REPOSITORY.rglob("*.md"))
    if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(REPOSITORY).parts)
]
SAMPLE_SUFFIXES = ("", "_total", "_bucket", "_count", "_sum")
NOT_METRICS = ("penstock_client", "penstock_options")
"""Other words of the same form: the file of a wheel, and a module."""


def name_of(family: MetricFamily) -> str:
    (metric,) = family.describe()
    return metric.name


def test_every_metric_that_a_document_names_exists() -> None:
    families = {name_of(family) for role in FAMILIES.values() for family in (*COMMON, *role)}
    samples = {name + suffix for name in families for suffix in SAMPLE_SUFFIXES}
    named = {
        (path.relative_to(REPOSITORY).as_posix(), word)
        for path in DOCUMENTS
        for word in re.findall(r"\bpenstock_[a-z0-9_]+", path.read_text("utf-8"))
        if not word.startswith(NOT_METRICS)
    }
    assert len(named) > 20
    assert {(path, word) for path, word in named if word not in samples} == set()


def test_the_table_on_the_page_of_metrics_names_every_family_of_a_gateway() -> None:
    text = (REPOSITORY / "shared" / "telemetry" / "README.md").read_text("utf-8")
    missing = [
        name_of(family)
        for family in FAMILIES["gateway"]
        if not re.search(rf"\b{name_of(family)}(_total)?\b", text)
    ]
    assert missing == []


def test_a_service_inside_the_process_of_another_shows_what_that_one_does_not() -> None:
    shown = {name_of(family) for family in FAMILIES["detokenizer"]}
    of_outer = {name_of(family) for family in (*COMMON, *FAMILIES["gateway"])}
    page = {metric.name for metric in RoleMetrics("detokenizer", inside="gateway").collect()}
    assert page == shown - of_outer == {"penstock_served_model"}
