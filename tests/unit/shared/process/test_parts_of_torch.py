"""Parts of torch that no service uses, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from shared.process import parts_of_torch
from shared.process.parts_of_torch import BUILD, TRIED_WITH, leave_parts_of_torch
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


TRIED = version("torch").startswith(TRIED_WITH) and version("torch").endswith(BUILD)


@pytest.mark.skipif(not TRIED, reason="this torch is imported as it is")
def test_services_read_none_of_them_and_whoever_wants_one_has_it() -> None:
    subprocess.run([sys.executable, "-c", SERVICES], cwd=REPOSITORY, timeout=120, check=True)


@pytest.mark.parametrize(
    ("installed", "leaves"),
    [
        ("2.13.0+cpu", True),
        ("2.13.1+cpu", True),
        ("2.13.0", False),
        ("2.13.0+cu130", False),
        ("2.14.0+cpu", False),
    ],
)
def test_a_torch_that_was_not_tried_is_imported_as_it_is(
    installed: str, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr(parts_of_torch, "version", lambda _: installed)
    monkeypatch.setattr(parts_of_torch, "import_late", lambda parts, **_: left.append(parts))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    leave_parts_of_torch()
    assert bool(left) is leaves
