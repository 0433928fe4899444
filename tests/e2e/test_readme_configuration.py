"""The configuration that the pages print runs a stack as it stands there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.support.client import connect, generate
from tests.support.client import request as prompt
from tests.support.data import REPOSITORY
from tests.support.stack import Stack

CONFIGURATION_PAGE = REPOSITORY / "services" / "README.md"
GATEWAY_PAGE = REPOSITORY / "services" / "gateway" / "README.md"
TIMEOUT_S = 60
SMALL = ("--corpus", "none", "--retriever", "0", "--draft", "none")


def left_open(ids: list[int], **sampling: Any) -> pb.GenerateRequest:
    """A request that does not say how it is drawn."""
    message = prompt(ids, **sampling)
    message.sampling.ClearField("temperature")
    return message


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    (example,) = re.findall(r"```toml\n(.*?)```", CONFIGURATION_PAGE.read_text(), re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(example)
    return file


async def test_a_stack_with_the_readme_s_configuration_answers(printed: Path) -> None:
    with Stack(*SMALL, environ={"PENSTOCK_CONFIG": str(printed)}) as stack:
        async with connect(stack.grpc) as stub:
            answer = await generate(stub, left_open([5, 6, 7] * 20, max_tokens=8, ignore_eos=True))
    assert answer.outcome == "finished"
    assert len(answer.ids) == 8
    assert answer.prompt is not None
    assert answer.prompt.sampling.temperature == pytest.approx(0.7)


@pytest.mark.thorough
async def test_a_stack_draws_as_its_model_s_generation_config_says_and_tells_so(
    model_dir: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(model_dir, tmp_path / "model")
    file = model / "generation_config.json"
    said = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**said, "do_sample": True, "temperature": 0.5, "top_k": 20}))
    length = {"max_tokens": 16, "ignore_eos": True}
    with Stack(*SMALL, "--model", str(model)) as stack:
        async with connect(stack.grpc) as stub:
            silent = await generate(stub, left_open([5, 6, 7], seed=3, **length))
            explicit = await generate(stub, prompt([5, 6, 7], seed=3, temperature=0.5, top_k=20, **length))
            greedy = await generate(stub, prompt([5, 6, 7], seed=3, **length))
            models = (await stub.ListModels(pb.ListModelsRequest())).models
    assert silent.ids == explicit.ids != greedy.ids
    defaults = {each.name: f"{each.value:g}, {each.source}" for each in models[0].default_sampling}
    assert defaults["temperature"] == "0.5, generation_config.json"
    assert defaults["top_k"] == "20, generation_config.json"
    assert defaults["top_p"] == "1, built in"


@pytest.mark.thorough
def test_what_the_readme_says_of_sampling_in_the_environment_counts(tmp_path: Path) -> None:
    words = re.findall(r"(PENSTOCK_MODEL_DEFAULT_SAMPLING)=(\S+)", GATEWAY_PAGE.read_text())
    expected = ({"temperature": 1.0, "top_p": 1.0}, {"temperature": 0.7, "top_k": 40})
    for (variable, word), values in zip(words, expected, strict=True):
        shown = shown_config(tmp_path, {variable: word})["decode"]["default_sampling"]["in_force"]
        assert values.items() <= {name: each["value"] for name, each in shown.items()}.items()
        assert {shown[name]["source"] for name in values} == {variable}


def shown_config(folder: Path, environ: dict[str, str]) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "config", "--json", *SMALL],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_setting_of_the_readme_s_configuration_counts(printed: Path) -> None:
    shown = shown_config(printed.parent, {})
    lines = [number for number, line in enumerate(printed.read_text().splitlines(), 1) if " = " in line]
    sources = {setting["source"].split(" ")[0] for role in shown.values() for setting in role.values()}
    assert {f"penstock.toml:{number}" for number in lines} <= sources
