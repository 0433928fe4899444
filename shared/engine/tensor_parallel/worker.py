"""A follower process: computes its share of every batch that rank 0 tells it, until the pipe ends.

Started by `parallel_model.py` with one JSON argument. Any failure ends the process with its traceback;
rank 0 then meets a closed connection in its next sum.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shared.engine.batch import Batch
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import load_model_config
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.tensor_parallel.group import Group
from shared.engine.tensor_parallel.rank import Rank, load_rank, rank_device
from shared.engine.tensor_parallel.shards import shard_config
from shared.engine.tensor_parallel.wire import Forward, read_command


def main(arguments: Sequence[str]) -> None:
    job: dict[str, Any] = json.loads(arguments[0])
    config = EngineConfig(**job["config"])
    torch.set_num_threads(config.threads)
    number, folder = int(job["rank"]), Path(job["folder"])
    rank = Rank(number, config.tensor_parallel, rank_device(config, number))
    (folder / f"alive-{number}").touch()
    group = Group(folder, rank.number, rank.num_ranks, rank.device, float(job["step_s"]))
    model_config = load_model_config(config.model_dir, config.dtype)
    pool = KvPool(
        KvLayout.of(shard_config(model_config, rank.num_ranks), config.kv_dtype),
        int(job["num_blocks"]),
        compute_dtype=TORCH_DTYPES[model_config.dtype],
        device=str(rank.device),
    )
    model = load_rank(
        config,
        model_config,
        pool,
        int(job["max_model_len"]),
        rank,
        group.reduce,
        wait_until_ready=group.wait_until_ready,
    )
    while (command := read_command(sys.stdin.buffer)) is not None:
        if isinstance(command, Forward):
            # Rank 0 alone draws; one row keeps the pass whole without computing every row's logits here.
            batch = Batch(command.token_ids, command.spans, (0,), _no_listener if command.listened else None)
            model.forward(batch)
        else:
            pool.copy_block(command.source, command.target)


def _no_listener(layer: int) -> None:
    """Rank 0's listeners make it run layer by layer; this makes the other ranks do the same."""


if __name__ == "__main__":
    main(sys.argv[1:])
