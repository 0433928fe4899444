"""`make setup` with a Python that is too old."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OLD_PYTHON = """\
#!/bin/sh
# What an older Python says to the two questions that it is asked.
case "$2" in
    *print*) echo 3.9.18 ;;
    *) exit 1 ;;
esac
"""


def setup(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, so that nothing is there yet."""
    shutil.copy(REPOSITORY / "Makefile", folder)
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(REPOSITORY / name, folder)
    return subprocess.run(
        ["make", "setup", f"PYTHON={python}"],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is what is tested")
@pytest.mark.parametrize(("python", "version"), [("python3", "3.9.18"), ("no-such-python", "missing")])
def test_a_python_that_is_too_old_or_missing_is_one_sentence(
    python: str, version: str, tmp_path: Path
) -> None:
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(OLD_PYTHON)
    fake.chmod(0o755)
    done = setup(tmp_path, python)
    assert done.returncode == 2
    sentence, trailer = done.stderr.splitlines()
    assert sentence == (
        f"Penstock needs Python 3.11 or newer, and {python} is {version}: name another one, as in "
        "make setup PYTHON=python3.12"
    )
    assert re.match(r"make(\[\d+\])?: \*\*\* ", trailer)
    assert not (tmp_path / ".venv").exists()
