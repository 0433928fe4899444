"""Modules that are read when somebody uses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.data import REPOSITORY

LATE = """
import sys
from shared.import_late import import_late

import_late(["whole.unused", "whole.used", "whole.used.deep", "whole.ring"], until="json.tool")
import whole
assert whole.read == ["whole"], whole.read
from whole import unused
import whole.used.deep
assert not hasattr(unused, "__wrapped__") and unused.__file__.endswith("unused.py")
assert whole.read == ["whole"], whole.read
assert whole.used.deep.answer == 42
assert whole.read == ["whole", "whole.used.deep"], whole.read
from whole.used import *
assert whole.read == ["whole", "whole.used.deep", "whole.used"] and named == 1 and "hidden" not in globals()
assert whole.ring.seen is None, "it asked for itself while it was read"
assert "whole.unused" not in whole.read
import json.tool
assert whole.read[-1] == "whole.unused"
try:
    unused.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""
FILES = {
    "__init__.py": "read = ['whole']\nfrom whole import unused\nimport whole.used, whole.ring\n",
    "unused.py": "import whole\nwhole.read.append('whole.unused')\n",
    "used/__init__.py": "from whole import read\nread.append('whole.used')\n"
    "__all__ = ['named']\nnamed = hidden = 1\n",
    "used/deep.py": "import whole\nwhole.read.append('whole.used.deep')\nanswer = 42\n",
    "ring.py": "from whole import ring\nseen = getattr(ring, 'later', None)\nlater = 1\n",
}


def test_a_module_is_read_once_it_is_asked_for_something(tmp_path: Path) -> None:
    for name, text in FILES.items():
        file = tmp_path / "whole" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    subprocess.run(
        [sys.executable, "-c", LATE],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(tmp_path)},
        timeout=60,
        check=True,
    )
