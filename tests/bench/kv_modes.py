"""What `bench_kv` compares: the modes, and what both of their sides must know."""

from __future__ import annotations

import random
import socket
from urllib.parse import urlparse

from tests.support.kv_pair import PlainLayout

LAYOUT = PlainLayout(24, 8192)
BLOCKS = 128
TRANSFERS = 4
TOTAL_BYTES = TRANSFERS * BLOCKS * LAYOUT.num_layers * LAYOUT.layer_block_bytes
TCP_CHUNK_BYTES = 256 << 10
ALONE_CHUNK_BYTES = 768 << 10
STOCK_CHUNK_BYTES = 256 << 10
STOCK_WINDOW_CHUNKS = 16
TCP, ALONE, STOCK, MEMCPY = "raw TCP", "nats-server alone", "stock nats-py", "memcpy"
OURS = tuple(
    f"{transport}, {order}" for transport in ("nats", "shm") for order in ("neighbours", "scattered")
)
MODES = (TCP, ALONE, STOCK, *OURS, MEMCPY)


def tables(mode: str, side: int) -> list[list[int]]:
    """Where the blocks of each transfer lie."""
    blocks = list(range(BLOCKS * TRANSFERS))
    if "scattered" in mode:
        random.Random(side).shuffle(blocks)
    return [blocks[number * BLOCKS : (number + 1) * BLOCKS] for number in range(TRANSFERS)]


def decode_name(mode: str) -> str:
    return f"decode-{OURS.index(mode)}"


def prefill_name(mode: str) -> str:
    return f"prefill-{OURS.index(mode)}"


def connected(url: str) -> socket.socket:
    """A plain connection to the server, ready for PUB and SUB."""
    connection = socket.create_connection((urlparse(url).hostname or "", urlparse(url).port or 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(64 << 10)
    connection.sendall(b'CONNECT {"verbose":false}\r\n')
    return connection
