"""The stack of compose/compose.yaml on a real engine: built, asked, scaled, hit, replaced, taken down.

Not part of the suite: `make compose-test`. WHEELS may name a folder of wheels for the build, and
TORCH_INDEX where it takes torch from; OVERRIDE a compose file that is laid over, for an engine that
allows less than others, such as fewer open files.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from openai import OpenAI

from services.launcher.network.ports import free_ports
from shared.roles import REQUIRED_ROLES, ROLES
from tests.support.client import Answer, connect, generate, request
from tests.support.data import REPOSITORY

BUILD_TIMEOUT_S = 1500
COMMAND_TIMEOUT_S = 300
PROJECT = "penstock-test"
IMAGE = "penstock-test"
COMPOSE_FILE = "compose/compose.yaml"
OVERRIDE = ["--file", os.environ["OVERRIDE"]] if "OVERRIDE" in os.environ else []
MOST_KILLS = 8
MAX_IMAGE_BYTES = 3_000_000_000
CALLS = 8
STREAM = request("Once upon a time", max_tokens=1900, ignore_eos=True, temperature=1.0, seed=5)


def engine_is_missing() -> str:
    if shutil.which("docker") is None:
        return "there is no docker command"
    done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=30)
    return f"no container engine answers: {done.stderr.strip()}" if done.returncode else ""


MISSING = engine_is_missing()
pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.timeout(BUILD_TIMEOUT_S)]


@dataclass(frozen=True, slots=True)
class ComposeStack:
    grpc_port: int
    http_port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            "docker",
            "compose",
            "--project-name",
            PROJECT,
            "--file",
            "compose/compose.yaml",
            *OVERRIDE,
            *arguments,
        ]
        environ = {
            **os.environ,
            "PENSTOCK_IMAGE": IMAGE,
            "PENSTOCK_GRPC_PORT": str(self.grpc_port),
            "PENSTOCK_HTTP_PORT": str(self.http_port),
            **self.settings,
        }
        return subprocess.run(
            command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip

    def do(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self, *arguments: str) -> None:
        self.do("up", "--detach", "--wait", "--no-build", *arguments)

    def containers(self, service: str) -> list[str]:
        return self.do("ps", "--quiet", service).split()

    def status(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.do("run", "--rm", "cli", "status", "--json"))[
            "instances"
        ]
        return rows

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/v1"


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    wheels = os.environ.get("WHEELS", "")
    context = ["--build-context", f"wheels={wheels}"] if wheels else []
    if "TORCH_INDEX" in os.environ:
        context += ["--build-arg", f"TORCH_INDEX={os.environ['TORCH_INDEX']}"]
    build = ["docker", "build", "--tag", IMAGE, "--file", "compose/Dockerfile", *context, "."]
    built = subprocess.run(
        build, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
    )
    assert built.returncode == 0, built.stderr[-4000:]
    grpc_port, http_port = free_ports("127.0.0.1", 2)
    running = ComposeStack(grpc_port, http_port)
    try:
        running.up()
        yield running
    finally:
        running.run("down", "--volumes", "--timeout", "30")


def test_a_question_is_answered_with_its_sources(stack: ComposeStack) -> None:
    question = ("How many tokens does a block hold?", "--retrieve", "--temperature", "0", "--json")
    lines = stack.do("run", "--rm", "cli", "ask", *question).splitlines()
    events = [json.loads(line) for line in lines]
    assert events[-1]["outcome"] == "finished"
    assert next(event for event in events if event["event"] == "prompt")["passages"]


def test_a_client_of_openai_is_answered_over_the_published_port(stack: ComposeStack) -> None:
    with OpenAI(base_url=stack.http, api_key="none", max_retries=0, timeout=60) as client:
        model = client.models.list().data[0]
        chunks = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "How many tokens does a block hold?"}],
            max_tokens=16,
            temperature=0,
            stream=True,
        )
        said = [choice for chunk in chunks for choice in chunk.choices]
    assert said[-1].finish_reason in ("length", "stop")
    assert "".join(choice.delta.content or "" for choice in said)


def test_the_image_is_small_and_builds_and_tests_nothing(stack: ComposeStack) -> None:
    assert int(engine("image", "inspect", "--format", "{{.Size}}", IMAGE)) < MAX_IMAGE_BYTES
    for tool in ("gcc", "g++", "cc", "make"):
        assert stack.run("exec", "decode", "which", tool).returncode != 0, tool
    assert stack.do("exec", "decode", "find", "/opt/penstock", "-type", "d", "-name", "tests") == ""
    assert stack.run("exec", "decode", "python", "-m", "pip", "--version").returncode != 0


def test_the_bus_is_asked_for_its_health(stack: ComposeStack) -> None:
    (nats,) = stack.containers("nats")
    assert engine("inspect", "--format", "{{.State.Health.Status}}", nats).strip() == "healthy"


def answering_gateways(stack: ComposeStack) -> set[str]:
    """The gateways that answer some calls over the one port, each over a connection of its own."""
    answered = set()
    for _ in range(CALLS):
        request = urllib.request.Request(
            f"{stack.http}/completions",
            json.dumps({"prompt": "Once upon a time", "max_tokens": 2}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answered.add(response.headers["x-penstock-request-id"].rpartition(".")[0])
    return answered


def test_two_gateways_are_behind_one_port_and_one_that_goes_is_not_missed(stack: ComposeStack) -> None:
    stack.up("--scale", "gateway=2")
    try:
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while len(answering_gateways(stack)) < 2:  # a new one is found within a few seconds
            assert time.monotonic() < deadline
        engine("stop", stack.containers("gateway")[0])
        assert len(answering_gateways(stack)) == 1
    finally:
        stack.up()


def test_every_role_is_ready(stack: ComposeStack) -> None:
    ready = {row["role"] for row in stack.status() if row["state"] == "ready"}
    assert ready == set(ROLES) - {"speculator"}


SCRAPE = """
import json
from urllib.request import urlopen

groups = json.load(urlopen("http://gateway:9100/sd", timeout=5))
urls = {group["labels"]["role"]: f"http://{group['targets'][0]}/metrics" for group in groups}
print(json.dumps({role: urlopen(url, timeout=5).status for role, url in urls.items()}))
"""


def test_every_role_answers_in_another_container_where_prometheus_is_sent(stack: ComposeStack) -> None:
    scraped = json.loads(stack.do("exec", "-T", "tokenizer", "python", "-c", SCRAPE))
    assert scraped == dict.fromkeys(set(ROLES) - {"speculator"}, 200)


def test_nobody_is_root_and_nobody_writes(stack: ComposeStack) -> None:
    assert stack.do("exec", "decode", "id", "-u").strip() == "10001"
    assert stack.run("exec", "decode", "touch", "/opt/penstock/file").returncode != 0


def test_a_role_cannot_come_in_as_another(stack: ComposeStack) -> None:
    found = stack.do("exec", "decode", "sh", "-c", "ls /secrets/* /run/penstock").split()
    assert [name for name in found if "/" not in name] == ["credentials.toml", "fleet_key"]


def test_logs_are_lines_of_json(stack: ComposeStack) -> None:
    lines = stack.do("logs", "--no-log-prefix", "gateway").splitlines()
    assert {"ready", "grpc_listening"} <= {json.loads(line)["event"] for line in lines}


async def test_streams_are_exact_when_replicas_are_killed_under_them(stack: ComposeStack) -> None:
    """In turns, until one was killed that a stream was on: which of them that is nobody outside knows."""
    await asyncio.to_thread(stack.up, "--scale", "decode=2")
    replaced = 0
    async with connect(stack.grpc) as stub:
        undisturbed = await generate(stub, STREAM)
        for turn in range(MOST_KILLS):
            container = stack.containers("decode")[turn % 2]
            answer, started = Answer(), time.perf_counter()
            killing: asyncio.Task[str] | None = None
            async for event in stub.Generate(STREAM, timeout=60):
                answer.add(event, started)
                if killing is None and answer.ids:
                    killing = asyncio.create_task(asyncio.to_thread(engine, "kill", container))
            assert killing is not None
            await killing
            assert answer.ids == undisturbed.ids
            assert answer.end is not None
            replaced += answer.end.usage.replacements
            await asyncio.to_thread(stack.up, "--scale", "decode=2")
            if replaced:
                break
    assert replaced


async def test_a_replaced_gateway_serves(stack: ComposeStack) -> None:
    await asyncio.to_thread(stack.up, "--force-recreate", "--no-deps", "gateway")
    async with connect(stack.grpc) as stub:
        assert (await generate(stub, STREAM)).outcome == "finished"


TWO_MODELS = {
    "COMPOSE_PROFILES": "second-model",
    "PENSTOCK_MODEL_NAME": "first",
    "PENSTOCK_SECOND_MODEL": "/opt/penstock/shared/demo/models/target",
    "PENSTOCK_SECOND_NAME": "second",
}
ANSWERED_WITHIN_S = 60


def completion(stack: ComposeStack, **body: Any) -> dict[str, Any]:
    asked = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **body}).encode()
    call = urllib.request.Request(f"{stack.http}/completions", asked, {"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=ANSWERED_WITHIN_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def until_led_to(stack: ComposeStack) -> None:
    """Wait until the balancer has found the gateway that is there now: a few seconds."""
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"{stack.http}/models", timeout=ANSWERED_WITHIN_S):
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_second_model_is_asked_for_by_its_name_and_scaled_by_itself(stack: ComposeStack) -> None:
    """A request that names no model gets the first."""
    two = replace(stack, settings=TWO_MODELS)
    try:
        two.up("--scale", "decode-second=2")
        assert len(two.containers("decode-second")) == 2
        until_led_to(two)
        answers = [completion(two, model=name) for name in ("first", "second")]
        assert [answer["model"] for answer in answers] == ["first", "second"]
        texts = [answer["choices"][0]["text"] for answer in answers]
        assert texts[0] != texts[1]
        assert completion(two)["choices"][0]["text"] == texts[0]
        with OpenAI(base_url=two.http, api_key="none", max_retries=0, timeout=60) as client:
            generating = [model.id for model in client.models.list().data]
        assert generating[0] == "first"
        assert "second" in generating
        ready = [row for row in two.status() if row["model"] == "second" and row["state"] == "ready"]
        assert sorted(row["role"] for row in ready) == sorted([*REQUIRED_ROLES, "decode"])
    finally:
        two.do("rm", "--stop", "--force", *(f"{role}-second" for role in REQUIRED_ROLES))
        stack.up()


def test_who_is_stopped_has_drained(stack: ComposeStack) -> None:
    (container, *_) = stack.containers("detokenizer")
    stack.do("stop", "detokenizer")
    assert engine("inspect", "--format", "{{.State.ExitCode}}", container).strip() == "0"
    stack.up()


def engine(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=True, timeout=COMMAND_TIMEOUT_S
    )
    return done.stdout
