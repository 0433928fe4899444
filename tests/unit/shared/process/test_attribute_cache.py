"""Names that were looked up are let go of before a fork, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.data import REPOSITORY

NAMES = """
import sys
from shared.process.attribute_cache import fill_attribute_cache

class Some: pass

some, names = Some(), [f"name {number}" for number in range(1000)]

def held():
    return sum(sys.getrefcount(name) for name in names)

before = held()
for name in names:
    getattr(some, name, None)
cached = held() - before
fill_attribute_cache()
print(cached, held() - before)
"""


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="another cache, if any")
def test_names_that_were_looked_up_are_let_go_of() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NAMES], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    cached, left = map(int, ended.stdout.split())
    assert cached > 100
    assert left <= cached // 20
