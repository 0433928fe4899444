"""Prometheus finds every instance through the gateway, and each shows what is its own."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from shared.telemetry.metrics import COMMON, FAMILIES
from tests.e2e.conftest import GetStack
from tests.support.client import connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.stack import METRICS_TIMEOUT_S, metrics_of
from tests.support.wait import until

PAGE = (REPOSITORY / "shared" / "telemetry" / "README.md").read_text()


def page(address: str, path: str, method: str = "GET") -> tuple[str, str]:
    """The type of the content, and the content."""
    asked = urllib.request.Request(f"http://{address}{path}", method=method)
    with urllib.request.urlopen(asked, timeout=METRICS_TIMEOUT_S) as response:
        return response.headers["Content-Type"], response.read().decode()


def discovery_path() -> str:
    """As the snippet on the page has it."""
    (path,) = re.findall(r"- url: http://[^/\s]+(/\S+)", PAGE)
    return str(path)


async def test_service_discovery_names_every_instance_where_it_answers(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    (gateway,) = stack.instances("gateway")
    rows = [row for row in stack.instances() if row.role != "nats"]

    def groups() -> list[dict[str, object]]:
        kind, content = page(gateway.metrics, discovery_path())
        assert kind == "application/json"
        found: list[dict[str, object]] = json.loads(content)
        return found

    await until(lambda: len(groups()) == len(rows))
    found = {(g["labels"]["role"], g["labels"]["instance"], *g["targets"]) for g in groups()}  # type: ignore[index,misc]
    assert found == {(row.role, row.id, row.metrics) for row in rows}


async def test_every_service_shows_its_own_families_and_no_others(get_stack: GetStack) -> None:
    for row in get_stack(3, True, "nats").instances():
        if row.role == "nats":
            continue
        families = set(re.findall(r"^# TYPE (penstock_\w+) ", metrics_of(row), re.MULTILINE))
        own = {metric.name for family in (*COMMON, *FAMILIES[row.role]) for metric in family.describe()}
        assert {name.removesuffix("_total") for name in families} == own
        assert page(row.metrics, "/metrics", "HEAD")[1] == ""


@pytest.mark.parametrize("path", ["/ready", "/live", "/metrics"])
async def test_head_is_answered(get_stack: GetStack, path: str) -> None:
    (gateway,) = get_stack().instances("gateway")
    assert page(gateway.metrics, path, "HEAD")[1] == ""


async def test_the_tokens_of_a_request_are_counted_for_its_model(get_stack: GetStack) -> None:
    stack = get_stack()
    (gateway,) = stack.instances("gateway")

    def generated() -> float:
        lines = metrics_of(gateway).splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith("penstock_generation_tokens_total{")
        )

    before = generated()
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request("Once upon a time", max_tokens=9, ignore_eos=True))
        assert answer.prompt is not None
    assert generated() == before + 9
    assert f'penstock_generation_tokens_total{{model="{answer.prompt.model}"}}' in metrics_of(gateway)
