"""The Python client as its users get it: a wheel in an environment with nothing of what serves."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import google.protobuf
import grpc
import pytest
import typing_extensions

from tests.e2e.conftest import GetStack
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program

pytestmark = pytest.mark.thorough
SOURCE = REPOSITORY / "protos" / "python"
README = (SOURCE / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:2]
"""The third one needs a model with a chat template: test_openai runs all of them without a wheel."""
TIMEOUT_S = 60
DEPENDENCIES = (
    Path(grpc.__file__).parent,
    Path(google.protobuf.__file__).parents[1],
    Path(typing_extensions.__file__),
)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Installed:
    wheel: Path
    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from a copy of its folder alone. What it depends on is linked, not fetched, and that is all."""
    root = tmp_path_factory.mktemp("client")
    shutil.copytree(SOURCE, root / "source", ignore=shutil.ignore_patterns("build", "dist", "*.egg-info"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(root), str(root / "source"))
    (wheel,) = root.glob("*.whl")
    venv.create(root / "venv", with_pip=False)
    result = Installed(wheel, root / "venv")
    pip("--python", result.python, "install", "--no-deps", "--no-index", str(wheel))
    linked = root / "dependencies"
    linked.mkdir()
    for path in DEPENDENCIES:
        (linked / path.name).symlink_to(path)
    (result.packages / "dependencies.pth").write_text(f"{linked}\n")
    return result


async def run(installed: Installed, code: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        installed.python, "-I", "-c", code,
        cwd=installed.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    ended = await ended_program(process)
    return ended.code, ended.out


def test_it_puts_one_package_into_an_environment(installed: Installed) -> None:
    found = {path.name for path in installed.packages.iterdir()}
    assert found == {"penstock", "penstock_client-0.1.0.dist-info", "dependencies.pth"}
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    assert {"penstock/client/py.typed", "penstock/client/_proto/inference_pb2.pyi"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


async def test_it_needs_neither_torch_nor_anything_of_what_serves(installed: Installed) -> None:
    code = """if True:
        import sys, penstock.client
        loaded = {name.partition(".")[0] for name in sys.modules}
        print(sorted(loaded & {"torch", "numpy", "services", "shared", "protos", "tests"}))
    """
    assert await run(installed, code) == (0, "[]\n")


def test_a_streamed_answer_takes_ten_lines() -> None:
    assert len(EXAMPLES[0].splitlines()) <= 10


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=["blocking", "async"])
async def test_the_examples_of_its_readme_run_as_printed(
    installed: Installed, get_stack: GetStack, number: int
) -> None:
    code, output = await run(installed, EXAMPLES[number].replace("127.0.0.1:50051", get_stack().grpc))
    assert code == 0, output
    assert output.strip()
    if number == 0:
        assert re.search(r"\[\d+ tokens\]$", output.strip())
