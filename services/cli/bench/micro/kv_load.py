"""The KV that is moved in one turn, and what both sides of a transfer must know of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

from shared.kv.memory.plain_pool import PlainLayout

TCP, ALONE, STOCK, MEMCPY = "raw TCP", "nats-server alone", "stock nats-py", "memcpy"
OURS = tuple(
    f"{transport}, {order}" for transport in ("nats", "shm") for order in ("neighbours", "scattered")
)
CHUNK_BYTES = 256 << 10
"""The bytes that raw TCP and stock nats-py send at once."""
ALONE_CHUNK_BYTES = 768 << 10
STOCK_WINDOW_CHUNKS = 16
PREFILL_INCARNATION = 1


@dataclass(frozen=True, slots=True)
class KvLoad:
    """Transfers of blocks of each layer; by default each is of 2048 tokens of a 0.5 B model."""

    layers: int = 24
    layer_block_bytes: int = 8192
    blocks: int = 128
    transfers: int = 2

    @classmethod
    def parse(cls, words: str) -> Self:
        return cls(*map(int, words.split("x")))

    def words(self) -> str:
        return f"{self.layers}x{self.layer_block_bytes}x{self.blocks}x{self.transfers}"

    @property
    def layout(self) -> PlainLayout:
        return PlainLayout(self.layers, self.layer_block_bytes)

    @property
    def pool_blocks(self) -> int:
        return self.blocks * self.transfers

    @property
    def total_bytes(self) -> int:
        return self.pool_blocks * self.layers * self.layer_block_bytes

    def chunks(self, chunk_bytes: int) -> int:
        """Return how many of this size are as much, rounded up."""
        return -(-self.total_bytes // chunk_bytes)

    def tables(self, mode: str, side: int) -> list[list[int]]:
        """Return where the blocks of each transfer lie."""
        blocks = list(range(self.pool_blocks))
        if "scattered" in mode:
            random.Random(side).shuffle(blocks)  # noqa: S311 - no secret
        return [blocks[start : start + self.blocks] for start in range(0, len(blocks), self.blocks)]


def decode_name(mode: str) -> str:
    return f"decode-{OURS.index(mode)}"


def prefill_name(mode: str) -> str:
    return f"prefill-{OURS.index(mode)}"
