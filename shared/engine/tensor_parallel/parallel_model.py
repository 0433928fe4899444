"""One model shared by several processes of this host. Rank 0 is the engine; the others follow its steps.

Rank 0 tells every batch to the followers over their standard input, then all compute their shares at once.
The pipe is also the bond of life: it ends when rank 0 does, in whatever way, and a follower then leaves.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from shared.engine.batch import Batch
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.weights import LoadProgress
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.tensor_parallel.group import RENDEZVOUS_S, STEP_S, Group
from shared.engine.tensor_parallel.rank import Rank, check_parallel, load_rank, rank_device
from shared.engine.tensor_parallel.shards import shard_config
from shared.engine.tensor_parallel.wire import encode_copy, encode_forward
from shared.errors import InternalError, InvalidRequest, Unavailable

CLOSE_S = 10.0  # a follower that has not left by then is killed
_POLL_S = 0.05
NO_TRANSFER = (
    "with tensor_parallel the KV lies in several processes and cannot be transferred; "
    "use tensor_parallel 1 where prefill and decode are separate"
)


class ParallelKvPool(KvPool):
    """Rank 0's share of the KV. Blocks have the same ids in every rank, so all copy what one copies.

    Its bytes are not the KV of any sequence, so nobody outside may see them.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        *,
        compute_dtype: torch.dtype | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(layout, num_blocks, compute_dtype=compute_dtype, device=device)
        self.on_copy: Callable[[int, int], None] | None = None

    @property
    def memory(self) -> memoryview:
        raise InvalidRequest(NO_TRANSFER)

    def pages(self) -> None:
        """Return None: blocks lie in other processes as well."""

    def copy_block(self, source: int, target: int) -> None:
        super().copy_block(source, target)
        if self.on_copy is not None:
            self.on_copy(source, target)


def parallel_layout(model_config: ModelConfig, config: EngineConfig) -> KvLayout:
    """The layout of one rank's pool. Raises InvalidRequest where the model cannot be shared."""
    return KvLayout.of(shard_config(model_config, config.tensor_parallel), config.kv_dtype)


class ParallelModel:
    """A `Model` whose arithmetic is spread over `config.tensor_parallel` processes.

    `pool` has `parallel_layout`. Raises Unavailable when a process does not start, ends or hangs for
    `step_s`; after that only `close` makes sense. Call `close`, or the followers live as long as this one.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        pool: ParallelKvPool,
        max_model_len: int,
        on_loaded: LoadProgress | None = None,
        *,
        step_s: float = STEP_S,
    ) -> None:
        check_parallel(config, model_config)
        if replace(pool.layout, content="") != parallel_layout(model_config, config):
            raise InternalError("the KV pool of a tensor-parallel model must have one rank's layout")
        self._broken = False
        self._step_s = step_s
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-ranks-")
        self._followers: list[subprocess.Popen[bytes]] = []
        try:
            folder = Path(self._folder.name)
            for number in range(1, config.tensor_parallel):
                self._followers.append(_start(config, number, max_model_len, pool.num_blocks, folder, step_s))
            self._wait_for_ranks(folder)
            rank = Rank(0, config.tensor_parallel, rank_device(config, 0))
            group = Group(folder, rank.number, rank.num_ranks, rank.device, step_s)
            self._model = load_rank(
                config,
                model_config,
                pool,
                max_model_len,
                rank,
                group.reduce,
                on_loaded,
                wait_until_ready=group.wait_until_ready,
            )
        except BaseException:
            self.close()
            raise
        pool.on_copy = lambda source, target: self._broadcast(encode_copy(source, target))

    def forward(self, batch: Batch) -> Tensor:
        """See `Model`."""
        self._broadcast(encode_forward(batch))
        try:
            return self._model.forward(batch)
        except BaseException:
            self._broken = True  # the ranks may now be at different places
            raise

    def close(self) -> None:
        """End the followers; waits for them at most CLOSE_S."""
        self._broken = True
        for follower in self._followers:
            assert follower.stdin is not None
            follower.stdin.close()
        deadline = time.monotonic() + CLOSE_S
        for follower in self._followers:
            try:
                follower.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                follower.kill()
                follower.wait()
        self._followers = []
        self._folder.cleanup()

    def _broadcast(self, command: bytes) -> None:
        if self._broken:
            raise Unavailable("the tensor-parallel processes are closed or out of step; restart the engine")
        deadline = time.monotonic() + self._step_s
        try:
            for follower in self._followers:
                assert follower.stdin is not None
                _write(follower.stdin.fileno(), command, deadline)
        except OSError as error:
            self._broken = True
            raise Unavailable(
                f"a tensor-parallel process ended or took no step for {self._step_s:g} s; "
                "restart the engine, the process's own log says why"
            ) from error

    def _wait_for_ranks(self, folder: Path) -> None:
        """Wait until every follower has said that it is alive: from then on the group's own deadlines
        hold."""
        deadline = time.monotonic() + RENDEZVOUS_S
        waiting = dict(enumerate(self._followers, start=1))
        while waiting:
            for number, follower in list(waiting.items()):
                if (folder / f"alive-{number}").exists():
                    del waiting[number]
                elif follower.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"tensor-parallel process {number} did not start; its own log says why")
            if waiting:
                time.sleep(_POLL_S)


def _write(pipe: int, data: bytes, deadline: float) -> None:
    """Write all of `data` into a pipe that does not block. Raises OSError when it ends or stays full."""
    rest = memoryview(data)
    while rest:
        _, writable, _ = select.select([], [pipe], [], max(0.0, deadline - time.monotonic()))
        if not writable:
            raise TimeoutError
        rest = rest[os.write(pipe, rest) :]


def _start(
    config: EngineConfig, number: int, max_model_len: int, num_blocks: int, folder: Path, step_s: float
) -> subprocess.Popen[bytes]:
    job = {
        "config": asdict(config),
        "rank": number,
        "max_model_len": max_model_len,
        "num_blocks": num_blocks,
        "folder": str(folder),
        "step_s": step_s,
    }
    follower = subprocess.Popen(  # noqa: S603  # this very program; no shell, nothing from outside
        [sys.executable, "-m", "shared.engine.tensor_parallel.worker", json.dumps(job)],
        bufsize=0,
        stdin=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for rank 0, which then ends the pipe
    )
    assert follower.stdin is not None
    os.set_blocking(follower.stdin.fileno(), False)
    return follower
