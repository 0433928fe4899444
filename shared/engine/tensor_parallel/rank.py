"""One rank's model: its share of the weights, and sums over all ranks where the shares meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.cuda.fp8_linear import to_fp8
from shared.engine.cuda.weight_map import map_layer
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig, MoeConfig
from shared.engine.loading.layers import ModelWeights, MoeMlp
from shared.engine.loading.weights import LoadProgress, WeightReader
from shared.engine.memory.kv_pool import KvPool
from shared.engine.tensor_parallel.shards import Reduce, reduce_outputs, shard_config, shard_layer
from shared.engine.torch_backend.model import TorchModel
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among those that share the model."""

    number: int
    num_ranks: int
    device: torch.device


class ParallelTorchModel(TorchModel):
    """Computes one rank's share of every layer."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        pool: KvPool,
        num_positions: int,
        *,
        reduce: Reduce,
        deterministic: bool = False,
    ) -> None:
        super().__init__(config, weights, pool, num_positions, deterministic=deterministic)
        self._reduce = reduce

    def _mixture(self, rows: Tensor, mlp: MoeMlp, config: MoeConfig) -> Tensor:
        return self._reduce(super()._mixture(rows, mlp, config))


def rank_device(config: EngineConfig, number: int) -> torch.device:
    """Rank n computes on the n-th GPU; all ranks share the CPU."""
    return torch.device("cuda", number) if config.device == "cuda" else torch.device("cpu")


def check_parallel(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise InvalidRequest for what `tensor_parallel` processes cannot do."""
    shard_config(model_config, config.tensor_parallel)
    if config.tensor_parallel > 1 and config.offload_memory_mb:
        raise InvalidRequest(
            "KV cannot be offloaded with tensor_parallel, each process holds a part of it; "
            "leave offload_memory_mb 0"
        )
    if config.tensor_parallel > 1 and config.deterministic and config.device == "cuda":
        raise InvalidRequest(
            "sums over several GPUs depend on the batch, so deterministic needs tensor_parallel 1 on cuda"
        )
    if config.device == "cuda" and config.tensor_parallel > torch.cuda.device_count():
        raise InvalidRequest(
            f"tensor_parallel is {config.tensor_parallel} and this machine has {torch.cuda.device_count()} "
            "GPUs; each process needs one of its own"
        )


def load_rank(
    config: EngineConfig,
    model_config: ModelConfig,
    pool: KvPool,
    max_model_len: int,
    rank: Rank,
    reduce: Reduce,
    on_loaded: LoadProgress | None = None,
    *,
    wait_until_ready: Callable[[], None],
) -> TorchModel:
    """Read the checkpoint layer by layer, keep this rank's share. `model_config` is the whole model's.

    `wait_until_ready` is called before the first sum: a rank may read far longer than a sum may take.
    """
    in_fp8 = config.quantization == "fp8"
    reader = WeightReader(
        config.model_dir,
        model_config,
        rank.device,
        quantization="none" if in_fp8 else config.quantization,
        quant_group=config.quant_group,
    )
    embedding = reader.embedding()
    layers = []
    for layer in reader.layers(on_loaded):
        share = shard_layer(layer, model_config, rank.number, rank.num_ranks)
        layers.append(reduce_outputs(map_layer(share, to_fp8) if in_fp8 else share, reduce))
    weights = ModelWeights(embedding, tuple(layers), reader.final_norm(), reader.head(embedding))
    wait_until_ready()
    share_config = shard_config(model_config, rank.num_ranks)
    if rank.device.type == "cuda":
        # Triton is needed on GPUs alone.
        from shared.engine.tensor_parallel.parallel_cuda_model import ParallelCudaModel  # noqa: PLC0415

        return ParallelCudaModel(
            share_config, weights, pool, max_model_len, reduce=reduce, graph_rows=config.max_sequences
        )
    return ParallelTorchModel(
        share_config, weights, pool, max_model_len, reduce=reduce, deterministic=config.deterministic
    )
