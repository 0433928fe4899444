"""A whole fleet in one loop: sessions of a real gateway over real workers, while nodes crash, hang, are cut.

Whatever happens to a request, its tokens are those that one engine draws alone, and in the end nobody holds
anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.engine import Engine, EngineConfig, SamplingParams
from tests.simulation.broken_scenario import CALLS, TOKENS, prompt_of, run
from tests.simulation.simulated_model import SimulatedModel
from tests.support.engine import generate
from tests.support.models import make_tiny_checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


def alone(model: Path) -> list[list[int]]:
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())
    how = {"temperature": 0.8, "max_tokens": TOKENS, "ignore_eos": True}
    return [generate(engine, prompt_of(one), SamplingParams(**how, seed=one)) for one in range(CALLS)]  # type: ignore[arg-type]


def test_a_fleet_answers_as_one_engine_does(model: Path) -> None:
    ids, _ = run(1, model, broken=False)
    assert ids == alone(model)


@pytest.mark.thorough(but="4")
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_fleet_answers_as_one_engine_does_whatever_breaks(model: Path, seed: int) -> None:
    ids, _ = run(seed, model, broken=True)
    assert ids == alone(model)


def traced(seed: int, model: Path, hash_seed: str) -> str:
    run_it = f"print(run({seed}, Path({str(model)!r}), broken=True))"
    code = f"from pathlib import Path\nfrom tests.simulation.broken_scenario import run\n{run_it}"
    path = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'protos/python'}"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.thorough
def test_a_broken_fleet_is_the_same_again_whatever_python_hashes_by(model: Path) -> None:
    """Not even by whether something ran in the process before."""
    assert str(run(2, model, broken=True)) == traced(2, model, "1")
