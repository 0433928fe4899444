"""`penstock config`: as a user runs it, and what it says of whatever else there may be."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from services.launcher.config_report import main
from services.launcher.options import REPOSITORY
from shared.roles import ROLES
from shared.text.default_model import packaged_file

KEY = "0f" * 32
TIMEOUT_S = 60


def as_a_user_runs_it(folder: Path, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "penstock.toml").write_text(text)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "config", *argv],
        cwd=folder,
        env={**own, "PENSTOCK_DEFAULT_MODEL": "none", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def config(
    folder: Path, *argv: str, text: str = "", environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same program in this process."""
    (folder / "penstock.toml").write_text(text)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
            patch.delenv(name)
        for name, value in {"PENSTOCK_DEFAULT_MODEL": "none", **(environ or {})}.items():
            patch.setenv(name, value)
        try:
            code = main(argv)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def report(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_setting_is_shown_with_where_it_came_from(tmp_path: Path) -> None:
    done = config(
        tmp_path,
        "--json",
        "--log-level",
        "debug",
        "--decode",
        "2",
        text="[decode]\nkv_memory_mb = 64\n",
        environ={"PENSTOCK_PREFILL_MAX_QUEUED": "9"},
    )
    shown = report(done)
    assert tuple(shown) == ROLES
    found = {
        (role, name): (shown[role][name]["value"], shown[role][name]["source"])
        for role, name in (
            ("decode", "kv_memory_mb"),
            ("prefill", "max_queued"),
            ("tokenizer", "log_level"),
            ("gateway", "grpc_port"),
            ("decode", "instance"),
            ("decode", "nats_url"),
            ("detokenizer", "max_sessions"),
        )
    }
    assert found == {
        ("decode", "kv_memory_mb"): (64, "penstock.toml:2 [decode]"),
        ("prefill", "max_queued"): (9, "PENSTOCK_PREFILL_MAX_QUEUED"),
        ("tokenizer", "log_level"): ("debug", "--log-level"),
        ("gateway", "grpc_port"): (50051, "penstock up"),
        ("decode", "instance"): ("decode-0, decode-1", "penstock up"),
        ("decode", "nats_url"): ("a server of its own", "penstock up"),
        ("detokenizer", "max_sessions"): (4096, "default"),
    }


def test_the_list_is_one_line_per_setting(tmp_path: Path) -> None:
    done = as_a_user_runs_it(tmp_path, text="[decode]\nkv_memory_mb = 64\n")
    assert done.returncode == 0
    assert done.stderr == ""
    assert ["kv_memory_mb", "64", "penstock.toml:2", "[decode]"] in [
        line.split() for line in done.stdout.splitlines()
    ]


def test_a_service_alone_has_nothing_that_a_stack_sets(tmp_path: Path) -> None:
    shown = report(config(tmp_path, "--json", "--alone"))
    assert {setting["kind"] for settings in shown.values() for setting in settings.values()} == {"default"}


def test_secrets_are_masked(tmp_path: Path) -> None:
    environ = {"PENSTOCK_FLEET_KEY": KEY, "PENSTOCK_NATS_URL": "nats://me:hidden-word@bus:4222"}
    for argv in (("--json",), ()):
        done = config(tmp_path, *argv, environ=environ)
        assert KEY not in done.stdout + done.stderr
        assert "hidden-word" not in done.stdout + done.stderr
        assert "@bus:4222" in done.stdout


def test_the_check_names_every_problem_and_exits_2(tmp_path: Path) -> None:
    done = config(
        tmp_path,
        "--check",
        "--model",
        str(tmp_path),
        text='[decode]\nkv_dtype = "int8"\nthreads = -1\n[gatway]\n',
        environ={"PENSTOCK_LOGLEVEL": "debug", "PENSTOCK_PREFILL_MAX_QUEUED": "x"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    words = (
        "[decode] kv_dtype",
        "threads is -1",
        "[gatway]",
        "PENSTOCK_LOGLEVEL",
        "MAX_QUEUED is 'x'",
        "config.json",
    )
    lines = done.stderr.splitlines()
    assert len(lines) == len(words)
    assert all(line.startswith("penstock config: ") for line in lines)
    assert [word for word in words if word in done.stderr] == list(words)


def test_the_check_of_what_is_right_says_so(tmp_path: Path) -> None:
    done = config(tmp_path, "--check", text="[decode]\nkv_memory_mb = 64\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the configuration is right ({tmp_path / 'penstock.toml'})\n"


@pytest.mark.parametrize("argv", [("--decode", "x"), ("--nonsense",)])
def test_a_wrong_option_exits_2(argv: tuple[str, ...], tmp_path: Path) -> None:
    done = as_a_user_runs_it(tmp_path, *argv)
    assert done.returncode == 2
    assert argv[0] in done.stderr


def sampling_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = report(done)["decode"]["default_sampling"]["in_force"]
    return found


def test_what_requests_take_that_do_not_say_is_shown_with_who_says_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.95}')
    text = '[model]\ndefault_sampling = "top_p=0.5"\n'
    found = sampling_of(config(tmp_path, "--json", "--model", str(model), text=text))
    assert found["temperature"] == {"value": 0.6, "source": "generation_config.json"}
    assert found["top_p"] == {"value": 0.5, "source": "penstock.toml:2 [model]"}
    assert found["top_k"] == {"value": 0, "source": "built in"}
    assert len(found) == 7
    lines = [line.split() for line in config(tmp_path, "--model", str(model), text=text).stdout.splitlines()]
    assert ["temperature", "0.6", "generation_config.json"] in lines


def test_the_shipped_model_s_sampling_is_that_of_its_card(tmp_path: Path) -> None:
    file = packaged_file()
    if file is None:
        pytest.skip("SmolLM2 is not installed")
    found = sampling_of(config(tmp_path, "--json", environ={"PENSTOCK_DEFAULT_MODEL": str(file)}))
    assert found["temperature"] == {"value": 0.2, "source": "the model's card"}
    assert found["top_p"] == {"value": 0.9, "source": "the model's card"}


def test_of_a_model_of_the_hub_nothing_is_fetched_to_show_its_sampling(tmp_path: Path) -> None:
    assert sampling_of(config(tmp_path, "--json", "--model", "org/name")) == {}


def test_sampling_that_no_request_could_have_is_a_problem_with_its_place(tmp_path: Path) -> None:
    text = '[model]\ndefault_sampling = ["temperature=0.5", "top_p=2"]\n'
    done = config(tmp_path, text=text)
    assert done.returncode == 2
    assert "penstock.toml:2 [model]: top_p is 2.0" in done.stderr
    checked = config(tmp_path, "--check", text=text)
    assert (checked.returncode, checked.stderr.count("top_p is 2.0")) == (2, 1)
    (tmp_path / "generation_config.json").write_text('{"temperature": -1}')
    done = config(tmp_path, "--model", str(tmp_path))
    assert done.returncode == 2
    assert "generation_config.json: temperature is -1" in done.stderr
    assert "default_sampling under [model]" in done.stderr
