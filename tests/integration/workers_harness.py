"""Real worker processes on a real nats-server; the test plays the gateway and the detokenizer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shared.bus import Bus, Delivery
from shared.bus.fleet import FleetView
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.nats_server import nats_server_binary
from shared.bus.subjects import inbox
from shared.config.fields import MODEL_SETTINGS
from shared.deadline import Deadline
from shared.messages import (
    NO_ADAPTER,
    Accepted,
    AdapterId,
    AuditReport,
    AuditRequest,
    Cancel,
    CancelAck,
    Held,
    Lost,
    Mark,
    Message,
    Prefill,
    Reserve,
    Tokens,
    pack_hashes,
    pack_ids,
)
from shared.sampling.parameters import SamplingParams
from tests.support.block_hashes import hashes_of
from tests.support.forked import ForkedProcess, start_forked
from tests.support.heartbeats import make_heartbeat
from tests.support.sampling import sampling
from tests.support.wait import until

START_TIMEOUT_S = 180.0
ASK_TIMEOUT_S = 20.0
WAIT_S = 60.0
"""Bounds waits on a loaded machine; what is waited for takes milliseconds on an idle one."""
GATEWAY = "gateway-test"
DETOKENIZER = "detokenizer-test"
GREEDY = sampling()


class Workers:
    """Starts processes and ends every one of them."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.processes: dict[str, subprocess.Popen[bytes] | ForkedProcess] = {}
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.nats_url = f"nats://127.0.0.1:{port}"
        command = [str(nats_server_binary()), "-a", "127.0.0.1", "-p", str(port)]
        with self._log("nats").open("wb") as log:
            self.processes["nats"] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def start(self, role: str, instance: str, **options: object) -> None:
        """`options` are fields of the role's configuration."""
        environ = {
            "PENSTOCK_NATS_URL": self.nats_url,
            "PENSTOCK_INSTANCE": instance,
            "OMP_NUM_THREADS": "1",
            f"PENSTOCK_{role.upper()}_KV_MEMORY_MB": "16",
        }
        for name, value in options.items():
            table = "MODEL" if name in MODEL_SETTINGS and role != "speculator" else role.upper()
            environ[f"PENSTOCK_{table}_{name.upper()}"] = str(value)
        process = start_forked(f"services.{role}", {**os.environ, **environ}, self._log(instance))
        self.processes[instance] = process

    def kill(self, instance: str) -> None:
        self.processes[instance].kill()
        self.processes[instance].wait(60)

    def terminate(self, instance: str) -> int:
        self.processes[instance].send_signal(signal.SIGTERM)
        return self.processes[instance].wait(90)

    def alive(self, instance: str) -> bool:
        return self.processes[instance].poll() is None

    def log(self, instance: str) -> str:
        return self._log(instance).read_text()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(60)

    def _log(self, name: str) -> Path:
        return self.log_dir / f"{name}.log"


@dataclass(slots=True)
class Stream:
    """What the detokenizer's inbox got for one request, in order of arrival."""

    ids: dict[int, int] = field(default_factory=dict)  # by position
    steps: int = 0
    finish: str = ""
    marks: list[Mark] = field(default_factory=list)
    lost: Lost | None = None

    @property
    def token_ids(self) -> list[int]:
        """In order of position; a hole is a failure."""
        positions = sorted(self.ids)
        assert positions == list(range(positions[0], positions[0] + len(positions)))
        return [self.ids[position] for position in positions]


class Edge:
    """The gateway and the detokenizer as the workers see them."""

    def __init__(self, bus: Bus, fleet: FleetView, gateway: HeartbeatPublisher, model_id: str) -> None:
        self.bus = bus
        self.fleet = fleet
        self.gateway = gateway
        self.model_id = model_id
        self.streams: defaultdict[tuple[str, int], Stream] = defaultdict(Stream)
        self._numbers = 0

    def new_id(self) -> str:
        self._numbers += 1
        return f"{GATEWAY}.{time.time_ns() % 10**9:x}{self._numbers:03x}"

    # ---- what comes in ----

    def on_tokens(self, delivery: Delivery) -> None:
        message = delivery.message
        assert isinstance(message, Tokens)
        for row, request_id in enumerate(message.request_ids):
            stream = self.streams[request_id, message.epochs[row]]
            for offset, token_id in enumerate(message.token_ids[row]):
                position = message.positions[row] + offset
                assert position not in stream.ids, "a position came twice"
                stream.ids[position] = token_id
            stream.steps += 1
            stream.finish = message.finish[row] or stream.finish
            stream.marks += message.marks[row]

    def on_gateway(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Lost):
            key = (delivery.envelope.request_id, delivery.envelope.epoch)
            self.streams[key].lost = delivery.message

    # ---- what goes out ----

    async def ready(self, *instances: str) -> None:
        def all_ready() -> bool:
            known = {view.heartbeat.instance for view in self.fleet.all() if view.ready}
            return set(instances) <= known

        await until(all_ready, timeout_s=START_TIMEOUT_S)

    async def ask(
        self,
        role: str,
        instance: str,
        message: Message,
        request_id: str = "",
        epoch: int = 0,
        seconds: float = 30.0,
    ) -> Message:
        envelope = self.bus.envelope(request_id, epoch, Deadline.after(seconds), GATEWAY)
        return await self.bus.ask(inbox(role, instance), message, envelope, Deadline.after(ASK_TIMEOUT_S))

    async def tell_speculator(
        self, instance: str, message: Message, request_id: str = "", epoch: int = 0
    ) -> None:
        await self.bus.publish(inbox("speculator", instance), message, self.bus.envelope(request_id, epoch))

    @property
    def layout(self) -> str:
        """Of the workers that are ready; they are all of one."""
        layouts = {
            view.heartbeat.worker.layout for view in self.fleet.all() if view.heartbeat.role == "prefill"
        }
        return max(layouts, default="")

    def hashes(self, ids: Sequence[int], adapter: AdapterId = NO_ADAPTER) -> bytes:
        return pack_hashes(hashes_of(ids, self.layout, adapter=adapter.digest))

    async def prefill(
        self,
        request_id: str,
        ids: Sequence[int],
        *,
        prefill: str = "prefill-0",
        decode: str = "decode-nats",
        how: SamplingParams = GREEDY,
        epoch: int = 1,
        seconds: float = 30.0,
        prompt_len: int = 0,
        adapter: AdapterId = NO_ADAPTER,
    ) -> Accepted:
        message = Prefill(
            pack_ids(ids),
            prompt_len or len(ids),
            self.hashes(ids, adapter),
            how,
            GATEWAY,
            DETOKENIZER,
            decode,
            0,
            adapter=adapter,
        )
        answer = await self.ask("prefill", prefill, message, request_id, epoch, seconds)
        assert isinstance(answer, Accepted)
        return answer

    async def reserve(
        self,
        request_id: str,
        ids: Sequence[int],
        *,
        prefill: str = "prefill-0",
        decode: str = "decode-nats",
        speculator: str = "",
        how: SamplingParams = GREEDY,
        epoch: int = 1,
        seconds: float = 30.0,
        prompt_len: int = 0,
        adapter: AdapterId = NO_ADAPTER,
    ) -> Accepted:
        message = Reserve(
            pack_ids(ids),
            prompt_len or len(ids),
            self.hashes(ids, adapter),
            how,
            GATEWAY,
            DETOKENIZER,
            prefill,
            speculator,
            0,
            adapter=adapter,
        )
        answer = await self.ask("decode", decode, message, request_id, epoch, seconds)
        assert isinstance(answer, Accepted)
        return answer

    async def generate(
        self,
        ids: Sequence[int],
        *,
        prefill: str = "prefill-0",
        decode: str = "decode-nats",
        speculator: str = "",
        how: SamplingParams = GREEDY,
        prompt_len: int = 0,
        adapter: AdapterId = NO_ADAPTER,
    ) -> Stream:
        """Place a request as a gateway does, and wait for its end. Without a prefill worker decode computes
        the prompt."""
        request_id = self.new_id()
        reserving = self.reserve(
            request_id,
            ids,
            prefill=prefill,
            decode=decode,
            speculator=speculator,
            how=how,
            prompt_len=prompt_len,
            adapter=adapter,
        )
        if prefill:
            await asyncio.gather(
                self.prefill(
                    request_id,
                    ids,
                    prefill=prefill,
                    decode=decode,
                    how=how,
                    prompt_len=prompt_len,
                    adapter=adapter,
                ),
                reserving,
            )
        else:
            await reserving
        stream = await self.ended(request_id)
        assert stream.lost is None, stream.lost
        return stream

    async def cancel(self, role: str, instance: str, request_id: str, epoch: int = 1) -> CancelAck:
        answer = await self.ask(role, instance, Cancel("cancelled"), request_id, epoch)
        assert isinstance(answer, CancelAck)
        return answer

    async def ended(self, request_id: str, epoch: int = 1) -> Stream:
        """It finished or was lost."""
        stream = self.streams[request_id, epoch]
        await until(lambda: stream.finish or stream.lost, timeout_s=WAIT_S)
        return stream

    async def lost(self, request_id: str, epoch: int = 1) -> Lost:
        stream = self.streams[request_id, epoch]
        await until(lambda: stream.lost, timeout_s=WAIT_S)
        assert stream.lost is not None
        return stream.lost

    async def held(self, *instances: str) -> list[Held]:
        found: list[Held] = []
        for instance in instances:
            report = await self.ask(instance.partition("-")[0], instance, AuditRequest())
            assert isinstance(report, AuditReport)
            found += report.held
        return found

    async def until_idle(self, *instances: str) -> None:
        """Everything was given back; fails with what was not."""
        held: list[Held] = []

        async def idle() -> bool:
            held[:] = await self.held(*instances)
            return not held

        try:
            await until(idle, timeout_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"still held: {held}") from error


@asynccontextmanager
async def edge_of(nats_url: str, model_id: str) -> AsyncIterator[Edge]:
    bus = await Bus.connect(nats_url, name="edge")
    fleet = FleetView(places=True)
    incarnation = time.time_ns() // 1000
    beat = make_heartbeat("gateway", GATEWAY, incarnation=incarnation)
    gateway = HeartbeatPublisher(bus, "gateway", GATEWAY, lambda: beat)
    edge = Edge(bus, fleet, gateway, model_id)
    try:
        await fleet.start(bus)
        await bus.serve(inbox("gateway", GATEWAY), edge.on_gateway)
        await bus.serve(inbox("detokenizer", DETOKENIZER), edge.on_tokens)
        gateway.start()
        yield edge
    finally:
        await gateway.stop()
        await fleet.stop()
        await bus.close()
