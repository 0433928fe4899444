"""A real worker in a node: its actor, supervisor and engine thread, on virtual time; the test is its bus."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from services.prefill.actor import PrefillActor
from services.prefill.config import PrefillConfig
from shared.bus.bulk import BulkConnection
from shared.engine import Engine, EngineConfig
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnFailed, OnReleased
from shared.messages import Lost, Message, Prefill, Tokens, pack_ids
from shared.process.service import Service
from shared.seams.clock import SYSTEM_CLOCK
from shared.worker.prefix_mirror import PrefixMirror
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.step_profile import StepProfile
from tests.simulation.world import World
from tests.support.grammar import save_model_with_tokenizer
from tests.support.noted_bus import NotedBus
from tests.support.played_receiver import PlayedReceiver
from tests.support.sampling import sampling
from tests.support.wait import until

CHUNK = 16
PROFILE = StepProfile(step_us=10_000, token_us=1_000, sequence_us=0, key_us=0)
PROMPT = tuple(range(1, 60))
PROMPT_S = sum((10 + tokens) / 1000 for tokens in (16, 16, 16, 11))
"""The steps of its chunks, by the profile."""
POLL_S = 0.02
"""What is looked for is found so late at most."""


@pytest.fixture(scope="session")
def llm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model_with_tokenizer(tmp_path_factory.mktemp("model"))


class PrefillNode:
    """A prefill worker as its process makes it, but for the bus and the signals."""

    def __init__(self, world: World, llm_dir: Path) -> None:
        self._world = world
        self._llm_dir = llm_dir
        self.service = Service("prefill", PrefillConfig(), "prefill-0")
        self.bus = self.service.bus = NotedBus()
        self.actor = self.service.supervisor.start_once(
            PrefillActor(self.service, self._load, self._make_sender, PlayedReceiver.make, PrefixMirror())
        )

    def _load(self) -> Engine:
        config = EngineConfig(str(self._llm_dir), kv_blocks=64, max_batch_tokens=CHUNK, max_sequences=16)
        return Engine(config, make_model=SimulatedModel.maker(PROFILE, self._world.spend_us))

    def _make_sender(self, engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
        bulk = cast(BulkConnection, None)  # nothing is granted that bytes would be sent for
        return KvSender(self.bus, bulk, engine.kv_pool, None, on_released=on_released, on_failed=on_failed)

    def place(self, seconds: float) -> None:
        """Ask for the first token of PROMPT, within so much time."""
        how = sampling(ignore_eos=True)
        prefill = Prefill(
            pack_ids(PROMPT), len(PROMPT), b"", how, "gateway-0", "detokenizer-0", "decode-0", 0
        )
        self.actor.receive(self.bus.asked(prefill, "r", 1, seconds=seconds))

    def told(self) -> list[Message]:
        """What it has told of the request: its token to the detokenizer, or its end to the gateway."""
        sent = [
            *self.bus.to("penstock.detokenizer.detokenizer-0"),
            *self.bus.to("penstock.gateway.gateway-0"),
        ]
        return [one for one in sent if isinstance(one, Tokens | Lost)]


async def serve_one(world: World, llm_dir: Path, seconds: float) -> tuple[float, list[Message]]:
    """Return after what time the worker told something of the request, and what."""
    node = PrefillNode(world, llm_dir)
    await until(lambda: node.actor._driver.loaded)
    node.place(seconds)
    began_s = SYSTEM_CLOCK.monotonic_s()
    await until(node.told)
    took_s, told = SYSTEM_CLOCK.monotonic_s() - began_s, node.told()
    await node.service.supervisor.stop()
    return took_s, told


def served(seed: int, llm_dir: Path, seconds: float = 60.0) -> tuple[float, list[Message], str]:
    with World(seed) as world:
        task = world.start(world.add_node("prefill-0"), serve_one(world, llm_dir, seconds), "test")

        async def main() -> tuple[float, list[Message]]:
            return await task

        return *world.run(main(), limit_s=30.0), world.trace.hexdigest()


def test_a_first_token_comes_when_the_profile_says_and_is_the_hash_of_its_prompt(llm_dir: Path) -> None:
    took_s, told, trace = served(1, llm_dir)
    assert took_s == pytest.approx(PROMPT_S, abs=POLL_S)
    engine = Engine(EngineConfig(str(llm_dir), kv_blocks=64), make_model=SimulatedModel.maker())
    engine.admit("r", PROMPT, len(PROMPT), sampling(ignore_eos=True), stop_after=1)
    (tokens,) = told
    assert isinstance(tokens, Tokens)
    assert tokens.token_ids == (engine.step().outputs[0].token_ids,)
    assert served(1, llm_dir) == (took_s, told, trace)
    assert served(2, llm_dir)[2] != trace


def test_a_prompt_whose_time_is_up_before_its_steps_are_done_is_lost(llm_dir: Path) -> None:
    for seconds, in_time in ((PROMPT_S + POLL_S, True), (PROMPT_S - 0.03, False)):
        _, (told,), _ = served(1, llm_dir, seconds)
        assert isinstance(told, Tokens if in_time else Lost)
