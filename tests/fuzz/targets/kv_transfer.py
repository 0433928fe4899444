"""KV for a real decode worker, which has made room for it: chunks by a real nats-server, and control messages
of its prefill worker, whatever they say. What clients ask meanwhile is answered as always.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.bus import codec
from shared.bus.subjects import answers, everything_at, inbox, subject_of
from shared.errors import ProtocolError
from shared.kv.chunk import ChunkHeader
from shared.messages import (
    Accepted,
    Cancel,
    Envelope,
    KvAbort,
    KvAbortAck,
    KvDone,
    KvGrant,
    KvReady,
    Message,
    Reserve,
    pack_ids,
)
from shared.sampling.parameters import SamplingParams
from tests.fuzz.fleet import opened_fleet
from tests.fuzz.messages import random_message
from tests.fuzz.mutation import EDGES
from tests.fuzz.played_transfers import kept_message, packed
from tests.fuzz.target import Fault, RunOne, Target
from tests.fuzz.targets.bus_codec import NO_VERSION, with_version
from tests.fuzz.targets.bus_message import check_answer
from tests.support.stack import Stack

PROMPT_TOKENS = 40
BLOCKS = 3
LAYERS = 8
EPOCH = 1
TRANSFER = 1
"""Stands in an input for the number of the transfer, and the next for those that are none."""
MAX_TOKENS = 4
GATEWAY, PREFILL, DECODE = "gateway-0", "prefill-0", "decode-0"
ANSWER_S = 10.0
BETWEEN_S = 0.005
PROMPTS = tuple(f"{word} and the river " * 12 for word in ("stone", "water", "iron", "oak", "salt"))
HEADER_CHANGES = ("transfer", "epoch", "offset", "layer", "block", "blocks", "body_bytes")
OPTIONS = ("--kv-transport", "nats")


def make(rng: random.Random) -> bytes:
    steps = (_chunk, _chunk, _chunk, _control, _done)
    lines = [rng.choice(steps)(rng) for _ in range(rng.choice((1, 3, 8)))]
    if rng.random() < 0.3:  # all of it, in any order, so that decoding begins over what has come
        lines += [json.dumps(["chunk", {"layer": layer, "blocks": BLOCKS}]) for layer in range(LAYERS)]
        lines += [_done(rng)]
        rng.shuffle(lines)
    return "\n".join(lines).encode()


def _chunk(rng: random.Random) -> str:
    first = rng.randrange(BLOCKS)
    fields = {
        "layer": rng.randrange(LAYERS),
        "block": first,
        "blocks": rng.randint(1, BLOCKS - first),
        "seed": rng.randrange(1000),
    }
    if rng.random() < 0.5:
        fields[rng.choice(HEADER_CHANGES)] = rng.choice((*EDGES, 3, 4, 8, 9)) & 0xFFFFFFFF
    if rng.random() < 0.3:
        fields["cut"] = rng.choice((0, 1, 47, 48, 49, 4096, -1))
    if rng.random() < 0.2:
        fields["flip"] = rng.randrange(100)
    return json.dumps(["chunk", fields])


def _control(rng: random.Random) -> str:
    message: Any = random_message(rng.choice((KvReady, KvDone, KvAbort, KvAbortAck)), rng)
    message = replace(message, transfer=rng.choice((TRANSFER, TRANSFER, TRANSFER, 2, 2**64 - 1)))
    return _said(rng, message)


def _done(rng: random.Random) -> str:
    ids = rng.choice(((5,), (5,), (5,), (), (5, 6), (4096,), (-1,), (2,), tuple(range(3000)), (2**63,)))
    return _said(
        rng, KvDone(TRANSFER, ids, rng.choice(("", "", "", "stop", "x")), rng.choice((0, -1, 2**63)))
    )


def _said(rng: random.Random, message: Message) -> str:
    epoch = rng.choice((EPOCH, EPOCH, EPOCH, EPOCH, 0, 2, 2**32))
    return json.dumps(["say", kept_message(packed("r-0", epoch, message), NO_VERSION).hex()])


class Peers:
    """The gateway and the prefill worker of each transfer, as the users of a stack's bus that they are."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._clients: dict[str, Client] = {}
        self._number = 0
        self._answer: asyncio.Future[Message] | None = None
        self._grant: asyncio.Future[KvGrant] | None = None
        self._honest = ThreadPoolExecutor(1)
        self._texts: dict[str, str] = {}

    async def play(self, data: bytes) -> None:
        """Raise Fault for an answer that says that there is a bug, or that is another one than before."""
        if not self._clients:
            await self._connect()
        self._number += 1
        prompt = PROMPTS[self._number % len(PROMPTS)]
        honest = asyncio.wrap_future(self._honest.submit(self._ask, prompt))
        request_id = f"{GATEWAY}.kv{time.time_ns()}"
        grant = await self._reserve(request_id)
        for line in data.decode(errors="replace").split("\n"):
            await self._step(line, request_id, grant)
        await self._clients[PREFILL].flush()
        await asyncio.sleep(BETWEEN_S)
        await self._tell(GATEWAY, Cancel("cancelled"), Envelope(request_id, EPOCH, 0, GATEWAY))
        text = await honest
        if text != self._texts.setdefault(prompt, text):
            raise Fault(f"another request was answered with {text!r} in place of {self._texts[prompt]!r}")

    async def close(self) -> None:
        self._honest.shutdown()
        for client in self._clients.values():
            await client.close()

    async def _connect(self) -> None:
        for user in (GATEWAY, PREFILL):
            credentials = self._stack.credentials(user)
            self._clients[user] = await nats.connect(
                self._stack.nats, user=credentials.user, password=credentials.password
            )
        await self._clients[GATEWAY].subscribe(f"{answers(GATEWAY)}.kv.*", cb=self._on_answer)
        await self._clients[PREFILL].subscribe(everything_at(inbox("prefill", PREFILL)), cb=self._on_prefill)
        for client in self._clients.values():
            await client.flush()

    async def _on_answer(self, msg: Msg) -> None:
        check_answer(msg.data)
        _, message = codec.decode(msg.data)
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    async def _on_prefill(self, msg: Msg) -> None:
        _, message = codec.decode(msg.data)
        if isinstance(message, KvGrant) and self._grant is not None and not self._grant.done():
            self._grant.set_result(message)

    async def _reserve(self, request_id: str) -> KvGrant:
        loop = asyncio.get_running_loop()
        self._answer, self._grant = loop.create_future(), loop.create_future()
        rng = random.Random(self._number)
        reserve = Reserve(
            token_ids=pack_ids(rng.randrange(3, 4096) for _ in range(PROMPT_TOKENS)),
            prompt_len=PROMPT_TOKENS,
            block_hashes=b"",
            sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
            gateway=GATEWAY,
            detokenizer="detokenizer-0",
            prefill=PREFILL,
            speculator="",
            priority=0,
        )
        deadline_us = time.time_ns() // 1000 + round(ANSWER_S * 1e6)
        reply = f"{answers(GATEWAY)}.kv.{self._number}"
        await self._tell(GATEWAY, reserve, Envelope(request_id, EPOCH, deadline_us, GATEWAY), reply)
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answer
            if not isinstance(answer, Accepted):
                raise Fault(f"decode has no room: {answer}")
            return await self._grant

    async def _tell(self, user: str, message: Message, envelope: Envelope, reply: str = "") -> None:
        subject = subject_of(inbox("decode", DECODE), type(message).__name__, user)
        await self._clients[user].publish(subject, codec.encode(message, envelope), reply)

    async def _step(self, line: str, request_id: str, grant: KvGrant) -> None:
        """Do what a line says; one that says nothing is none."""
        try:
            word, said = json.loads(line)
            if word == "chunk":
                payload = _payload(said, grant)
                await self._clients[PREFILL].publish(grant.subject, payload)
                return
            envelope, message = codec.decode(with_version(bytes.fromhex(said)))
            if not isinstance(message, KvReady | KvDone | KvAbort | KvAbortAck):
                return
        except (ValueError, TypeError, KeyError, ProtocolError):
            return
        if message.transfer == TRANSFER:
            message = replace(message, transfer=grant.transfer)
        await self._tell(PREFILL, message, replace(envelope, request_id=request_id, origin=GATEWAY))

    def _ask(self, prompt: str) -> str:
        connection = http.client.HTTPConnection(self._stack.http, timeout=60.0)
        try:
            body = {"model": "penstock-demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise Fault(f"another request was answered with {response.status}: {answer[:400]!r}")
        return str(json.loads(answer)["choices"][0]["text"])


def _payload(said: dict[str, int], grant: KvGrant) -> bytes:
    """A chunk with the fields that are said, and everything else as it should be."""
    cell = grant.credit_bytes // (LAYERS * BLOCKS)
    blocks = said.get("blocks", 1)
    body = random.Random(said.get("seed", 0)).randbytes(min(blocks, BLOCKS) * cell)
    header = ChunkHeader(
        transfer=said.get("transfer", grant.transfer),
        epoch=said.get("epoch", EPOCH),
        offset=said.get("offset", 0),
        layer=said.get("layer", 0),
        block=said.get("block", 0),
        blocks=blocks,
        body_bytes=said.get("body_bytes", len(body)),
    )
    try:
        payload = bytearray(header.pack(memoryview(body)) + body)
    except struct.error as error:  # a number that no header can name
        raise ValueError("no header") from error
    if "flip" in said:
        payload[said["flip"] % len(payload)] ^= 1
    return bytes(payload[: said["cut"]] if "cut" in said else payload)


@contextmanager
def opened() -> Iterator[RunOne]:
    with asyncio.Runner() as runner:
        made: list[Peers] = []

        def sender(stack: Stack) -> RunOne:
            peers = Peers(stack)
            made.append(peers)
            return lambda data: runner.run(peers.play(data))

        with opened_fleet(sender, *OPTIONS) as run_one:
            try:
                yield run_one
            finally:
                for peers in made:
                    runner.run(peers.close())


TARGET = Target("kv_transfer", make, opened, tries=20, has_stack=True)
