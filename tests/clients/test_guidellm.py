"""guidellm, unchanged, against a whole stack: short runs without an error."""

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
SYNCHRONOUS, CONCURRENT = "kind=synchronous", "kind=concurrent,streams=3"
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


async def benchmark(served: Served, folder: Path, profile: str, path: str) -> dict[str, Any]:
    """The report of the one benchmark that is run."""
    report = folder / "report.json"
    await ClientEnvironment("guidellm").run(
        *("guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={served.url},request_format={path}"),
        *("--profile", profile),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={DEMO_MODEL}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={report}"),
        cwd=folder,
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    found: dict[str, Any] = benchmark
    return found


@pytest.mark.parametrize(
    ("profile", "path"),
    [(SYNCHRONOUS, CHAT), (CONCURRENT, CHAT), (CONCURRENT, TEXT), (CONCURRENT, RESPONSES)],
)
async def test_a_benchmark_has_no_error(served: Served, tmp_path: Path, profile: str, path: str) -> None:
    totals = (await benchmark(served, tmp_path, profile, path))["metrics"]["request_totals"]
    assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}


async def test_tokens_and_times_of_each_request_are_known(served: Served, tmp_path: Path) -> None:
    report = await benchmark(served, tmp_path, SYNCHRONOUS, TEXT)
    for request in report["requests"]["successful"]:
        assert request["output_tokens"] == OUTPUT_TOKENS
        assert request["prompt_tokens"] >= PROMPT_TOKENS
        assert 0 < request["time_to_first_token_ms"] < request["request_latency"] * 1000
