"""How a test talks to a program: what to call and where as arguments, the answer as JSON on standard output.

Plain standard library: each program runs beside it with the Python of an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

QUESTION = "How many tokens does a block hold?"
STORY = "Once upon a time"


def answer(load: Callable[[str, str, str], object]) -> None:
    """`load(url, model, embedder)` has a method for each thing that a test may ask for."""
    what, *served = sys.argv[1:]
    found: Any = getattr(load(*served), what)()
    print(json.dumps(found))
