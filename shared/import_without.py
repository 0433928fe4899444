"""Import a library without another one that it wants for what is not used here, and that takes long."""

from __future__ import annotations

import importlib
import sys


def import_without(left_out: str, module: str) -> None:
    """Import `module` while `left_out` cannot be imported; to be called before anything else imports it.

    Where `left_out` is there already nothing is saved, and nothing is done.
    """
    if left_out in sys.modules:
        return
    sys.modules[left_out] = None  # type: ignore[assignment]  # what is None cannot be imported
    try:
        importlib.import_module(module)
    finally:
        del sys.modules[left_out]
