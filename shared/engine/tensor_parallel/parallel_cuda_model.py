"""One rank's share of a model on a GPU of its own."""

from __future__ import annotations

from torch import Tensor

from shared.engine.cuda.model import CudaModel
from shared.engine.loading.config import ModelConfig, MoeConfig
from shared.engine.loading.layers import ModelWeights, MoeMlp
from shared.engine.memory.kv_pool import KvPool
from shared.engine.tensor_parallel.shards import Reduce


class ParallelCudaModel(CudaModel):
    """One rank on a GPU, as ParallelTorchModel; all ranks record the sums in their graphs in one order."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        pool: KvPool,
        num_positions: int,
        *,
        reduce: Reduce,
        graph_rows: int,
    ) -> None:
        self._reduce = reduce
        super().__init__(config, weights, pool, num_positions, graph_rows=graph_rows)

    def _mixture(self, rows: Tensor, mlp: MoeMlp, config: MoeConfig) -> Tensor:
        return self._reduce(super()._mixture(rows, mlp, config))
