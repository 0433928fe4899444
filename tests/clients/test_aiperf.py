"""aiperf, unchanged, against a whole stack: short runs without an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.text.model_source import DEMO_MODEL
from tests.clients.environments import INSTALL_TIMEOUT_S, ClientEnvironment
from tests.clients.served import Served

pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S)
REQUESTS = 6
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 8


async def profile(served: Served, folder: Path, model: str, *options: str) -> dict[str, Any]:
    """The report of a run; the server's metrics lie beside it."""
    await ClientEnvironment("aiperf").run(
        *("aiperf", "profile", "--ui", "none", "--no-gpu-telemetry"),
        *("--url", served.url, "--model", model),
        *("--tokenizer", str(DEMO_MODEL), "--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS)),
        *("--concurrency", "2", "--request-count", str(REQUESTS)),
        *("--artifact-dir", str(folder)),
        *options,
        cwd=folder,
    )
    report: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    return report


@pytest.mark.parametrize(
    "options",
    [("chat", "--streaming"), ("chat",), ("completions", "--streaming"), ("responses", "--streaming")],
    ids=["chat-stream", "chat", "completions-stream", "responses-stream"],
)
async def test_a_profile_has_no_error(served: Served, tmp_path: Path, options: tuple[str, ...]) -> None:
    report = await profile(served, tmp_path, served.model, "--endpoint-type", *options)
    assert report["error_summary"] == []
    assert report["request_count"]["avg"] == REQUESTS


async def test_tokens_that_the_server_counts_are_those_asked_for(served: Served, tmp_path: Path) -> None:
    options = ("--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--per-chunk-usage")
    report = await profile(served, tmp_path, served.model, *options)
    assert report["total_usage_completion_tokens"]["avg"] == REQUESTS * OUTPUT_TOKENS
    assert report["total_usage_prompt_tokens"]["avg"] >= REQUESTS * PROMPT_TOKENS


async def test_embeddings_are_profiled_without_an_error(served: Served, tmp_path: Path) -> None:
    report = await profile(served, tmp_path, served.embedder, "--endpoint-type", "embeddings")
    assert report["error_summary"] == []
    assert report["request_count"]["avg"] == REQUESTS


async def test_the_metrics_of_the_edge_are_read_along(served: Served, tmp_path: Path) -> None:
    await profile(served, tmp_path, served.model, "--endpoint-type", "chat", "--streaming")
    export = json.loads((tmp_path / "server_metrics_export.json").read_text())
    assert export["summary"]["endpoints_successful"] == [f"{served.url}/metrics"]
    assert "penstock_time_to_first_token_seconds" in export["metrics"]
