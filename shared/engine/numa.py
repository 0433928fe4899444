"""Spreads what a thread touches first over the memory of all NUMA nodes: weights are read by every core."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog

from shared.engine.affinity import parse_cpus
from shared.errors import InvalidRequest

log = structlog.get_logger()

NODES_WITH_MEMORY = Path("/sys/devices/system/node/has_memory")
DEFAULT_POLICY, INTERLEAVE_POLICY = 0, 3
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""Numbers of set_mempolicy(2) and get_mempolicy(2), which the C library has no functions for."""


def memory_nodes(listed: Path = NODES_WITH_MEMORY) -> tuple[int, ...]:
    """Nodes that have memory; () where the kernel does not say."""
    try:
        return parse_cpus(listed.read_text().strip())  # nodes are listed as CPUs are
    except (OSError, InvalidRequest):
        return ()


@contextmanager
def interleaved(nodes: Sequence[int]) -> Iterator[None]:
    """Pages that this thread touches first within the block, of files as well, lie on `nodes` in turns.

    Nothing changes with fewer than two nodes, under a policy that somebody else has chosen (numactl), and
    where the kernel refuses, as it does in containers without CAP_SYS_NICE.
    """
    if len(nodes) < 2 or memory_policy() != DEFAULT_POLICY or not _set_policy(INTERLEAVE_POLICY, nodes):
        yield
        return
    try:
        yield
    finally:
        _set_policy(DEFAULT_POLICY, ())


def memory_policy() -> int | None:
    """Return the memory policy of this thread; None where the kernel does not tell."""
    policy = ctypes.c_int()
    calls = _CALLS.get(platform.machine())
    told = calls is not None and _libc().syscall(calls[1], ctypes.byref(policy), None, 0, None, 0) == 0
    return policy.value if told else None


def _set_policy(policy: int, nodes: Sequence[int]) -> bool:
    words = [0] * (max(nodes, default=0) // 64 + 1)
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    mask = (ctypes.c_ulong * len(words))(*words) if nodes else None
    bits = 64 * len(words) + 1  # the kernel reads one bit fewer than it is told of
    if _libc().syscall(_CALLS[platform.machine()][0], policy, mask, bits if nodes else 0) == 0:
        return True
    log.info("memory_not_interleaved", nodes=tuple(nodes), why=os.strerror(ctypes.get_errno()))
    return False


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
