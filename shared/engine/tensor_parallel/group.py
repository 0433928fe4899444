"""The ranks of one model on one host: how they find each other, and the sum over all of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from shared.errors import Unavailable

RENDEZVOUS_S = 120.0  # starting Python and torch on a busy machine
LOAD_S = 1800.0  # until the slowest rank has read its weights
STEP_S = 60.0  # the longest that one sum may wait for another rank
_LOOPBACK = "127.0.0.1"
_c10d: Any = (
    torch.distributed
)  # torch's own annotations lack stores, gloo's options and common bases of groups


class Group:
    """Process groups of its own, so that several engines can live in one process.

    Gloo on the CPU; on GPUs NCCL for the sums, gloo to learn that all are ready. Ranks meet in `folder`,
    which must be private to this engine. `step_s` bounds every sum.
    """

    def __init__(
        self, folder: Path, rank: int, num_ranks: int, device: torch.device, step_s: float = STEP_S
    ) -> None:
        self._step = timedelta(seconds=step_s)
        store = _c10d.FileStore(str(folder / "ranks"), num_ranks)
        store.set_timeout(timedelta(seconds=RENDEZVOUS_S))
        options = _c10d.ProcessGroupGloo._Options()  # noqa: SLF001  # torch offers no other way to choose the interface
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]  # noqa: SLF001  # as above
        options._timeout = timedelta(seconds=RENDEZVOUS_S)  # noqa: SLF001  # as above
        self._gloo = _c10d.ProcessGroupGloo(store, rank, num_ranks, options)
        self._sums = self._gloo
        self._wide = device.type == "cpu"
        if device.type == "cuda":
            torch.cuda.set_device(device)
            nccl = _c10d.ProcessGroupNCCL.Options()
            nccl._timeout = self._step  # noqa: SLF001  # as above
            self._sums = _c10d.ProcessGroupNCCL(_c10d.PrefixStore("nccl", store), rank, num_ranks, nccl)

    def wait_until_ready(self) -> None:
        """Returns once every rank is here. Raises Unavailable when one ended or takes longer than LOAD_S."""
        self._sum(self._gloo, torch.zeros(1), timedelta(seconds=LOAD_S))

    def reduce(self, part: Tensor) -> Tensor:
        """The sum of `part` over all ranks. Raises Unavailable when a rank ended or does not answer."""
        total = part.float() if self._wide else part.contiguous()
        self._sum(self._sums, total, self._step)
        return total.to(part.dtype)

    def _sum(self, group: Any, total: Tensor, timeout: timedelta) -> None:
        options = _c10d.AllreduceOptions()
        options.timeout = timeout
        try:
            group.allreduce([total], options).wait()
        except RuntimeError as error:
            raise Unavailable(
                f"a tensor-parallel process ended or did not answer within {timeout.total_seconds():g} s; "
                f"restart the engine, the process's own log says why ({_first_line(error)})"
            ) from error


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0][:200]
