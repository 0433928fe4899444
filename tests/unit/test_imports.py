"""Invariant 1: services import shared, never each other; nats, grpc, aiohttp, torch stay in their places."""

from __future__ import annotations

import ast
import functools
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for top in ("services", "shared")
    for path in (REPOSITORY / top).rglob("*.py")
    if "__pycache__" not in path.parts
)

ALLOWED = {
    "nats": ("shared/bus/", "services/cli/bench/micro/"),
    "aiohttp": ("services/gateway/http/", "services/cli/bench/targets/", "services/cli/bench/micro/"),
    "grpc": (
        "services/gateway/grpc/",
        "services/gateway/edge_certificate",
        "services/gateway/scope/outcome",
        "services/cli/",
        "shared/http2/",
    ),
    "torch": (
        "shared/engine/",
        "shared/kv/",
        "shared/demo/",
        "shared/training/",
        "shared/retrieval/encoders/",
        "services/prefill/",
        "services/decode/",
        "services/speculator/",
        "services/retriever/",
    ),
}

ORDER = (
    "import_without",
    "seams",
    "errors",
    "deadline",
    "ticks",
    "alarm",
    "tasks",
    "telemetry",
    "health",
    "roles",
    "degradation",
    "cache_modes",
    "files",
    "sampling",
    "blocks",
    "fairness",
    "messages",
    "bus",
    "actor",
)
"""The base of shared: each may import only what stands before it."""


@functools.cache
def imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return frozenset(found)


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


COMPOSING = {
    "services/gateway/__main__.py": {"services.detokenizer.config", "services.detokenizer.service_body"}
}
"""The one program that puts two services into one process, where an operator wants that; nothing else of
either knows of the other."""


def test_services_import_shared_but_never_each_other() -> None:
    strays: dict[str, set[str]] = {}
    for path in SOURCES:
        name = relative(path)
        for module in imports(path):
            if module.split(".")[0] == "services" and module.split(".")[:2] != name.split("/")[:2]:
                strays.setdefault(name, set()).add(module)
    assert strays == COMPOSING


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_what_does_input_and_output_or_computes_is_imported_only_where_they_belong(package: str) -> None:
    importers = [relative(p) for p in SOURCES if package in {name.split(".")[0] for name in imports(p)}]
    assert importers, f"nobody imports {package}"
    strays = [name for name in importers if not name.startswith(ALLOWED[package])]
    assert strays == []


def test_the_base_of_shared_imports_one_way() -> None:
    for path in SOURCES:
        place = relative(path).removesuffix(".py").split("/")
        if place[0] != "shared" or place[1] not in ORDER:
            continue
        allowed = set(ORDER[: ORDER.index(place[1]) + 1])
        used = {name.split(".")[1] for name in imports(path) if name.startswith("shared.")}
        assert used <= allowed, f"{relative(path)} imports {sorted(used - allowed)}"


@pytest.mark.parametrize(
    ("package", "above"),
    [("engine", ("shared.kv.", "shared.bus", "shared.actor", "shared.worker")), ("kv", ("shared.worker",))],
    ids=["engine", "kv"],
)
def test_the_engine_does_not_know_the_kv_transport_and_neither_knows_the_workers(
    package: str, above: tuple[str, ...]
) -> None:
    for path in (REPOSITORY / "shared" / package).rglob("*.py"):
        assert not {name for name in imports(path) if name.startswith(above)}, path


ENGINE_ORDER = (
    "affinity",
    "numa",
    "batch",
    "dtypes",
    "block_table",
    "sequence",
    "cost_model",
    "loading",
    "engine_config",
    "memory",
    "torch_backend",
    "native",
    "step_pacer",
    "core_arbiter",
    "cuda",
    "tensor_parallel",
    "backends",
    "adapters",
    "scheduling",
    "sampling",
    "draft_head",
    "results",
    "input_processor",
    "model_runner",
    "engine_core",
    "intake",
    "outlet",
    "branching",
    "engine",
    "llm",
    "measuring",
)
"""The engine's packages and the modules at its root: each may import only what stands before it."""


GATEWAY_ORDER = (
    "open_sockets",
    "shared_ports",
    "scrape_targets",
    "rows",
    "request",
    "answer",
    "config",
    "connection_places",
    "edge_certificate",
    "question",
    "keys",
    "virtual",
    "fleet",
    "regions",
    "scope",
    "tracing",
    "flags",
    "admission",
    "served_fleet",
    "context",
    "request_scope",
    "prompt",
    "session",
    "asks",
    "grpc",
    "http",
    "gateway",
    "__main__",
)
HTTP_ORDER = (
    "listener",
    "fields",
    "completions",
    "callers",
    "responses",
    "ask_pages",
    "pages",
    "completion_calls",
    "text_pages",
    "rerank_pages",
    "vector_store_pages",
    "openapi",
    "route",
    "console",
    "framing",
    "router",
    "server",
)


KV_ORDER = (
    "limits",
    "transfer_key",
    "cells",
    "request_blocks",
    "chunk",
    "expiring",
    "control_sender",
    "transports",
    "transfer_timer",
    "transfer_side",
    "memory",
    "sending",
    "receiving",
    "both_sides",
)
CLI_ORDER = (
    "exit_codes",
    "arguments",
    "stack_file",
    "launcher_process",
    "view",
    "ask",
    "fleet",
    "bench",
    "usage",
    "flags",
    "capacity",
    "planner",
    "local",
    "router",
    "__main__",
    "completion",
)
CAPACITY_ORDER = (
    "step_curve",
    "profile",
    "profile_file",
    "workload",
    "workload_trace",
    "pipeline",
    "stage_loads",
    "played_figures",
    "prediction",
    "sizing",
    "what_if",
    "measured_comparison",
    "capacity_answer",
    "capacity_words",
    "capacity_options",
    "metrics_page",
    "stack_profile",
    "capacity",
)
PLANNER_ORDER = (
    "arrival_window",
    "seasons",
    "forecast",
    "request_shape",
    "planner_settings",
    "counts_search",
    "scale_in_delay",
    "model_planner",
    "model_counts",
    "fleet_sight",
    "cold_starts",
    "change_budget",
    "fleet_planner",
    "scaler",
    "launcher_scaler",
    "compose_scaler",
    "keda_scaler",
    "plan_record",
    "plan_loop",
    "plan_words",
    "plan_options",
    "plan_command",
)
BENCH_ORDER = (
    "stats",
    "plan",
    "targets",
    "run",
    "report",
    "serve_options",
    "measured_load",
    "worker",
    "serve",
    "stacks",
    "ab_side",
    "ab_metric",
    "ab",
    "micro",
    "engine",
    "bench",
)


@pytest.mark.parametrize(
    ("package", "order"),
    [
        ("services/cli", CLI_ORDER),
        ("services/cli/bench", BENCH_ORDER),
        ("services/cli/capacity", CAPACITY_ORDER),
        ("services/cli/planner", PLANNER_ORDER),
        ("shared/kv", KV_ORDER),
        ("shared/retrieval", ("documents", "encoders", "index", "citing")),
        ("shared/engine", ENGINE_ORDER),
        ("services/gateway", GATEWAY_ORDER),
        ("services/gateway/http", HTTP_ORDER),
    ],
    ids=[
        "cli",
        "cli's bench",
        "cli's capacity",
        "cli's planner",
        "kv",
        "retrieval",
        "engine",
        "gateway",
        "gateway's http",
    ],
)
def test_the_packages_inside_of_a_package_import_one_way(package: str, order: tuple[str, ...]) -> None:
    """Imports inside of functions count. `__init__` names what others use: nobody in here goes through it."""
    root, name = REPOSITORY / package, package.replace("/", ".")
    met = set()
    for path in SOURCES:
        if not path.is_relative_to(root) or path == root / "__init__.py":
            continue
        place = path.relative_to(root).parts[0].removesuffix(".py")
        met.add(place)
        assert name not in imports(path), f"{relative(path)} imports the __init__ of {name}"
        inside = {
            module.removeprefix(f"{name}.") for module in imports(path) if module.startswith(f"{name}.")
        }
        late = {module.split(".")[0] for module in inside} - set(order[: order.index(place) + 1])
        assert not late, f"{relative(path)} imports {sorted(late)}"
    assert met == set(order)


MAX_FILES = 22
LARGER = {"shared/engine/loading": 25, "shared/engine/loading/families": 28}
"""One file for each family of models, and one for each thing that a checkpoint is read by."""


def test_no_package_has_more_files_than_a_reader_can_hold() -> None:
    counts: dict[str, int] = {}
    for path in SOURCES:
        if path.name != "__init__.py":
            counts[relative(path.parent)] = counts.get(relative(path.parent), 0) + 1
    assert {name: count for name, count in counts.items() if count > LARGER.get(name, MAX_FILES)} == {}


def test_the_modules_of_the_engine_make_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        name = relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if name.startswith("shared.engine."):
            graph[name] = set(imports(path) - {name})
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
