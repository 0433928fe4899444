"""The sending sides of what KV is compared with: raw TCP, nats-server alone, stock nats-py, memcpy."""

from __future__ import annotations

import asyncio
import mmap
import os
from contextlib import AsyncExitStack

import nats
import numpy as np

from services.cli.bench.micro.kv_load import (
    ALONE_CHUNK_BYTES,
    CHUNK_BYTES,
    STOCK_WINDOW_CHUNKS,
    KvLoad,
)
from services.cli.bench.micro.nats_socket import nats_socket, received
from services.cli.bench.micro.turns import TurnWork
from shared.kv.limits import WINDOW_BYTES

COPY_BYTES = 1 << 20
"""The bytes that memcpy copies at once."""


async def tcp_work(port: int, load: KvLoad, stack: AsyncExitStack) -> TurnWork:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    body = memoryview(os.urandom(CHUNK_BYTES))

    async def work(_turn: int) -> None:
        for _ in range(load.chunks(CHUNK_BYTES)):
            writer.write(body)
            await writer.drain()
        await reader.readexactly(1)

    return work


def alone_work(url: str, load: KvLoad, stack: AsyncExitStack) -> TurnWork:
    connection = nats_socket(url)
    stack.callback(connection.close)
    connection.sendall(b"SUB bench.landed 1\r\n")
    body = os.urandom(ALONE_CHUNK_BYTES)
    publication = b"PUB bench.alone %d\r\n%b\r\n" % (len(body), body)
    chunks, window = load.chunks(ALONE_CHUNK_BYTES), WINDOW_BYTES // ALONE_CHUNK_BYTES

    def send() -> None:
        landed = 0
        for sent in range(chunks):
            while sent - landed >= window:
                landed += received(connection).count(b"MSG")
            connection.sendall(publication)
        while landed < chunks:
            landed += received(connection).count(b"MSG")

    return lambda _turn: asyncio.to_thread(send)


async def stock_work(url: str, load: KvLoad, stack: AsyncExitStack) -> TurnWork:
    client = await nats.connect(url)
    stack.push_async_callback(client.close)
    window = asyncio.Semaphore(STOCK_WINDOW_CHUNKS)

    async def on_ack(_message: object) -> None:
        window.release()

    await client.subscribe("bench.ack", cb=on_ack)
    body = os.urandom(CHUNK_BYTES)

    async def work(_turn: int) -> None:
        for _ in range(load.chunks(CHUNK_BYTES)):
            await window.acquire()
            await client.publish("bench.chunks", body)
        for _ in range(STOCK_WINDOW_CHUNKS):
            await window.acquire()
        for _ in range(STOCK_WINDOW_CHUNKS):
            window.release()

    return work


def memcpy_work(load: KvLoad) -> TurnWork:
    source, target = (np.frombuffer(mmap.mmap(-1, load.total_bytes), np.uint8) for _ in range(2))
    source[:], target[:] = 1, 2  # every page is there before it is measured

    async def work(_turn: int) -> None:
        for start in range(0, load.total_bytes, COPY_BYTES):
            target[start : start + COPY_BYTES] = source[start : start + COPY_BYTES]

    return work
