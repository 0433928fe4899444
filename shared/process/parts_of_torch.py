"""Leave parts of torch unread that no service uses: a fifth of its memory, a third of the time it takes."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from shared.import_late import import_late

PARTS = (
    "torch._meta_registrations",  # shapes without numbers, for compilers: two thirds of what is left out
    "torch.ao",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.optim",
    "torch.quantization",
    "torch.utils.data",
)
"""Modules that torch imports for those who may want them; each is read when somebody does."""
COMPILER = "torch._dynamo"
"""It imports all of them, but not in every order; an optimizer imports it, too."""
TRIED_WITH, BUILD = "2.13.", "+cpu"
"""The torch whose modules bear it that these come later. Any other is imported as it is: builds for GPUs
bring Triton and operators of their own, which may want parts in other orders, and nobody has tried."""


def leave_parts_of_torch() -> None:
    """Leave PARTS unread in this process, where torch is the build for CPUs that this was tried with.

    Where it is imported already nothing is saved, and nothing done.
    """
    if "torch" in sys.modules:
        return
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return
    if installed.startswith(TRIED_WITH) and installed.endswith(BUILD):
        import_late(PARTS, until=COMPILER)
