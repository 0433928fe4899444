"""A real Prometheus with the shipped configuration, rules and queries, against a whole stack."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from services.launcher.network.ports import free_ports
from tests.clients.programs.told import QUESTION
from tests.clients.served import ASK_TIMEOUT_S, Served
from tests.support.stack import Stack
from tests.support.wait import until
from tests.unit.test_observability import FOLDER, dashboard

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus command")

WAIT_S = 60.0
"""The time for several scrapes and evaluations."""
VARIABLES = {
    "$__rate_interval": "30s",
    "$slo": "1.0",
    "$model": ".*",
    "$prompt_tokens": ".*",
}
PROMPT = " ".join([QUESTION] * 4)
"""Longer than a block of KV, so that prefixes are looked up."""
QUIET = {
    *(
        "Shed, by hop and reason",
        "Answers with less",
        "Breakers",
        "Refused for want of a key or for its limit",
    ),
    *("Accepted drafts", "Draft tokens per second", "Messages not taken", "Restarts and reconnections"),
    "Requests with spans",
}
"""Panels that may be empty where nothing goes wrong, nobody drafts and there is no collector."""


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as response:
            answer = json.loads(response.read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def answers(self) -> bool:
        try:
            self.get("status/buildinfo")
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """As shipped, but for the gateway's address, and quicker, so that tests need not wait."""
    assert PROMETHEUS is not None
    folder = tmp_path_factory.mktemp("prometheus")
    (gateway,) = stack.instances("gateway")
    config = (FOLDER / "prometheus.yaml").read_text()
    for ours, here in (("gateway:9100", gateway.metrics), ("5s", "1s"), ("10s", "1s")):
        assert ours in config
        config = config.replace(ours, here)
    (folder / "prometheus.yaml").write_text(config)
    shutil.copy(FOLDER / "rules.yaml", folder)
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                "--config.file=prometheus.yaml",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(autouse=True)
async def started(prometheus: Prometheus) -> None:
    await until(prometheus.answers, WAIT_S)


async def test_every_instance_is_found_and_answers(stack: Stack, prometheus: Prometheus) -> None:
    wanted = {(row.role, row.id) for row in stack.instances() if row.role != "nats"}

    def up() -> set[tuple[str, str]]:
        targets = prometheus.get("targets", state="active")["activeTargets"]
        return {(t["labels"]["role"], t["labels"]["instance"]) for t in targets if t["health"] == "up"}

    await until(lambda: up() == wanted, WAIT_S)


async def test_every_rule_is_evaluated_without_an_error(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    await until(lambda: rules() and all(rule["health"] != "unknown" for rule in rules()), WAIT_S)
    assert {rule["name"]: rule.get("lastError") for rule in rules() if rule["health"] != "ok"} == {}


PANELS = {panel["title"]: panel for panel in dashboard()["panels"] if panel["type"] != "row"}


async def test_every_panel_shows_what_there_is(served: Served, prometheus: Prometheus) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}

    def answered(target: dict[str, Any]) -> bool:
        expression = target["expr"]
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        return bool(prometheus.get("query", query=expression)["result"])

    empty: set[str] = set()

    async def all_show() -> bool:
        await asyncio.to_thread(served.ask, "/v1/chat/completions", body)
        empty.clear()
        for title, panel in PANELS.items():
            unanswered = [target["refId"] for target in panel["targets"] if not answered(target)]
            empty.update(f"{title} {query}" for query in unanswered if title not in QUIET)
        return not empty

    try:
        await until(all_show, WAIT_S)
    except AssertionError as error:
        raise AssertionError(f"panels without data: {empty}") from error
