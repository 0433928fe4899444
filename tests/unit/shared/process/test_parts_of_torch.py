"""Parts of torch that no service uses, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.data import REPOSITORY

SERVICES = """
import sys
from shared.process.parts_of_torch import PARTS, leave_parts_of_torch

leave_parts_of_torch()
import services.decode.__main__, services.prefill.__main__
import services.retriever.__main__, services.speculator.__main__
import torch

def unread():
    return {part for part in PARTS if type(sys.modules[part]).__name__ == "_LateModule"}

assert unread() == set(PARTS), set(PARTS) - unread()
weight = torch.nn.Parameter(torch.ones(3))
weight.sum().backward()
torch.optim.SGD([weight], lr=1.0).step()
assert weight.tolist() == [0.0, 0.0, 0.0] and "torch.optim" not in unread()
torch.utils.data.DataLoader([1, 2])
"""


def test_services_read_none_of_them_and_whoever_wants_one_has_it() -> None:
    subprocess.run([sys.executable, "-c", SERVICES], cwd=REPOSITORY, timeout=120, check=True)
