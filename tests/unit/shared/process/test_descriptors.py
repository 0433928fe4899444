"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.data import REPOSITORY

PROGRAM = """
import resource
from shared.process.descriptors import descriptor_limit, raise_descriptor_limit

resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, 300))
print(descriptor_limit(), raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("soft", [100, 300])
def test_the_soft_limit_becomes_the_hard_one(soft: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(soft=soft)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(soft), "300", "300", "300"]
