"""A tenant that sends a request now and then, where another has all slots, is a guest at once: the other's
streams rest for its rows, and every text is what it is undisturbed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.engine import LLM, SamplingParams
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from tests.e2e.conftest import options
from tests.support.client import Answer, connect, generate, request
from tests.support.models import target_model
from tests.support.stack import Stack
from tests.support.wait import until

SLOTS = 2
CONTEXT_TOKENS = 4096
LONG_TOKENS = 900
SHORT_TOKENS = 30
PROMPTS = ([5, 6, 7], [8, 9], [10, 11, 12, 13])
SECRETS = {tenant: new_api_key() for tenant in ("heavy", "light")}


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose streams last for as long as a test needs them."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(target_model(folder.parent), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT_TOKENS}))
    return folder


@pytest.fixture(scope="module")
def stack(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One decode worker with SLOTS slots and as many places for guests, and two gateways."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys = [ApiKey(tenant, tenant, hash_api_key(secret)) for tenant, secret in SECRETS.items()]
    file.write_text("\n".join(map(describe_api_key, keys)))
    environ = {
        "PENSTOCK_GATEWAY_API_KEYS": str(file),
        "PENSTOCK_DECODE_MAX_SEQUENCES": str(SLOTS),
        "PENSTOCK_DECODE_GUEST_SEQUENCES": str(SLOTS),
        "PENSTOCK_GATEWAY_SHARE_PORTS": "false",
    }
    with Stack(*options(long_model, None, 1, "auto"), "--gateway", "2", environ=environ) as stack:
        yield stack


def sampled(prompt: list[int], max_tokens: int) -> pb.GenerateRequest:
    return request(prompt, max_tokens=max_tokens, ignore_eos=True, temperature=1.0, seed=prompt[0])


class Stream:
    """A request of a tenant that goes on while others come."""

    def __init__(self, stub: rpc.InferenceStub, tenant: str, message: pb.GenerateRequest) -> None:
        self.answer = Answer()
        self._call = stub.Generate(message, timeout=120, metadata=key_of(tenant))
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> Answer:
        async for event in self._call:
            self.answer.add(event, 0.0)
        return self.answer

    @property
    def begun(self) -> bool:
        return bool(self.answer.ids)


def key_of(tenant: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {SECRETS[tenant]}"),)


@asynccontextmanager
async def all_slots_taken(gateway: str) -> AsyncIterator[list[Stream]]:
    """The heavy tenant's streams have all slots, and one more of it waits for one."""
    async with connect(gateway) as stub:
        streams = [Stream(stub, "heavy", sampled(prompt, LONG_TOKENS)) for prompt in PROMPTS[:SLOTS]]
        await until(lambda: all(stream.begun for stream in streams))
        streams.append(Stream(stub, "heavy", sampled(PROMPTS[SLOTS], SHORT_TOKENS)))
        yield streams
        await asyncio.gather(*(stream.task for stream in streams))


def waited_in_line(answer: Answer) -> bool:
    assert answer.end is not None
    return "line" in {phase.name for phase in answer.end.timeline.phases}


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("light_gateway", [0, 1])
async def test_a_light_tenants_request_is_a_guest_at_any_gateway_and_every_text_is_the_same(
    stack: Stack, long_model: Path, light_gateway: int
) -> None:
    gateways = [instance.grpc for instance in stack.instances("gateway")]
    async with all_slots_taken(gateways[0]) as streams, connect(gateways[light_gateway]) as stub:
        asked = [[20, 21, 22], [23]]
        light = [
            await generate(stub, sampled(prompt, SHORT_TOKENS), metadata=key_of("light")) for prompt in asked
        ]
        assert not any(stream.task.done() for stream in streams[:SLOTS])
        assert not streams[SLOTS].begun
    answers = [*light, *(stream.answer for stream in streams)]
    assert [answer.outcome for answer in answers] == ["finished"] * len(answers)
    assert [waited_in_line(answer) for answer in light] == [False, False]
    assert waited_in_line(streams[SLOTS].answer)
    await stack.until_idle()
    llm = LLM(str(long_model))
    for prompt, answer in zip([*asked, *PROMPTS], answers, strict=True):
        params = SamplingParams(temperature=1.0, seed=prompt[0], max_tokens=len(answer.ids), ignore_eos=True)
        assert answer.ids == list(llm.generate([prompt], params)[0].token_ids)
