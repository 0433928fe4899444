"""Several models of a stack: who is told which, and what is refused before anything starts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from services.launcher.adapters import prepare_adapter_file
from services.launcher.options import MAX_INSTANCES, parse_options
from services.launcher.plan import plan_instances
from services.launcher.role_settings import config_type
from services.launcher.stack_models import MAX_MODELS
from shared.config.settings import load_config
from shared.files.adapter_file import read_adapter_file
from shared.roles import REQUIRED_ROLES, ROLES
from tests.support.data import REPOSITORY

TWO = ("--model", "a=org/small", "--model", "org/large")


def in_file(folder: Path, text: str) -> dict[str, str]:
    (folder / "penstock.toml").write_text(text)
    return {"PENSTOCK_CONFIG": str(folder / "penstock.toml")}


def configs(argv: list[str], environ: dict[str, str]) -> dict[str, Any]:
    """What each process reads from its environment, by its name."""
    options = parse_options(argv, environ)
    assert options.problems == ()
    specs = plan_instances(options, nats_url="nats://h:1", grpc_ports=[1], http_ports=[2], environ=environ)
    return {
        spec.instance: load_config(config_type(spec.role), spec.role, environ=spec.environ) for spec in specs
    }


def problems(argv: list[str], environ: dict[str, str] | None = None) -> str:
    return "\n".join(parse_options(argv, environ or {}).problems)


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        parse_options(argv, {})
    assert end.value.code == 2
    return capsys.readouterr().err


def test_each_model_has_so_many_workers_of_its_own_and_the_rest_is_shared() -> None:
    told = configs([*TWO, "--decode", "2"], {})
    decodes = [(told[f"decode-{n}"].model, told[f"decode-{n}"].served_name) for n in range(4)]
    assert decodes == [("org/small", "a"), ("org/large", "org/large")] * 2
    for role in REQUIRED_ROLES:
        assert [told[f"{role}-{n}"].served_name for n in (0, 1)] == ["a", "org/large"]
    shared = [name for name in told if name.partition("-")[0] in {*ROLES} - {*REQUIRED_ROLES}]
    assert shared == ["gateway-0", "retriever-0"]
    assert told["gateway-0"].default_model == "a"


def test_a_draft_is_one_of_the_first_model() -> None:
    told = configs([*TWO, "--draft", "org/tiny"], {})
    assert (told["speculator-0"].model, told["speculator-0"].drafts_for) == ("org/tiny", ("a",))


def test_one_model_may_have_a_name_and_says_nothing_of_others(tmp_path: Path) -> None:
    told = configs(["--model", f"mine={tmp_path}", "--draft", "org/tiny"], {})
    assert (told["decode-0"].model, told["decode-0"].served_name) == (str(tmp_path), "mine")
    assert (told["gateway-0"].default_model, told["speculator-0"].drafts_for) == ("", ())


def test_a_folder_whose_path_has_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a=b").mkdir()
    monkeypatch.chdir(tmp_path)
    for text in ("a=b", "./a=b", str(tmp_path / "a=b")):
        (model,) = parse_options(["--model", text], {}).models
        assert (model.name, model.model) == ("", str(tmp_path / "a=b"))


FILE = '[models]\nsmall = "here"\nlarge = "org/large"\n'


def test_the_file_names_them_in_its_order_and_paths_count_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    told = configs([], in_file(tmp_path, FILE))
    assert [(told[f"prefill-{n}"].served_name, told[f"prefill-{n}"].model) for n in (0, 1)] == [
        ("small", str(tmp_path / "here")),
        ("large", "org/large"),
    ]
    assert told["gateway-0"].default_model == "small"


@pytest.mark.parametrize(("argv", "environ"), [(["--model", "org/b"], {}), ([], {"PENSTOCK_MODEL": "org/b"})])
def test_the_command_line_and_the_environment_win_over_the_file(
    argv: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    told = configs(argv, {**in_file(tmp_path, FILE), **environ})
    assert [name for name in told if name.startswith("decode")] == ["decode-0"]
    assert told["decode-0"].model == "org/b"


def test_the_default_may_be_another_one_than_the_first(tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[gateway]\ndefault_model = "org/large"\n')
    assert configs([*TWO], environ)["gateway-0"].default_model == "org/large"


def test_two_of_one_name_and_a_name_for_all_of_them_are_problems() -> None:
    twice = problems(["--model", "x/m", "--model", "x/m"])
    assert twice == "--model: 2 models are called 'x/m'; tell them apart as NAME=MODEL, or under [models]"
    named = problems([*TWO], {"PENSTOCK_MODEL_SERVED_NAME": "b"})
    assert named.startswith("PENSTOCK_MODEL_SERVED_NAME: served_name is the name of one model and 2 are")
    unknown = problems([*TWO], {"PENSTOCK_GATEWAY_DEFAULT_MODEL": "c"})
    assert unknown.endswith("default_model is 'c', and the stack serves a, org/large; name one of them")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[models]\na = 7\n", "penstock.toml:2: [models] a is 7; write a folder, a file or the name"),
        ('[models]\na = ""\n', "[models] a is ''; write a folder"),
        ('[models]\n"a b" = "x/y"\n', "the model's name 'a b' is not one that clients can ask for"),
        ('[models]\n"a\\u0007" = "x/y"\n', "the model's name 'a\\x07' is not one that clients can ask for"),
        ('[common]\nmodel = "x/z"\n[models]\na = "x/y"\n', "model is said beside [models]"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_place(text: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in problems([], in_file(tmp_path, text))


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("=org/a", "--model =org/a is not [NAME=]MODEL"),
        ("a=", "--model a= is not [NAME=]MODEL"),
        ("a=/no/such/folder", "--model /no/such/folder is not there"),
    ],
)
def test_an_option_that_names_no_model_is_refused(
    argument: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refusal(["--model", argument], capsys)


def test_so_many_models_and_instances_are_the_most(capsys: pytest.CaptureFixture[str]) -> None:
    def named(count: int) -> list[str]:
        return [part for n in range(count) for part in ("--model", f"m{n}=x/y")]

    assert problems(named(MAX_MODELS)) == ""
    assert f"a stack serves at most {MAX_MODELS}" in problems(named(MAX_MODELS + 1))
    most = MAX_INSTANCES // 2
    assert parse_options([*TWO, "--decode", str(most)], {}).counts["decode"] == MAX_INSTANCES
    told = refusal([*TWO, "--decode", str(most + 1)], capsys)
    assert f"--decode {most + 1} for each of 2 models makes more than {MAX_INSTANCES} instances" in told


def test_an_adapter_of_the_command_line_is_one_over_the_first_model(tmp_path: Path) -> None:
    argv = [*TWO, "--state-dir", str(tmp_path), "--adapter", f"sql={tmp_path}"]
    options = parse_options(argv, {})
    prepare_adapter_file(options)
    (entry,) = read_adapter_file(options.adapter_file)
    assert (entry.base, entry.name) == ("a", "sql")


def test_the_page_s_command_and_file_name_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "services" / "README.md").read_text().split("### Several models\n", 1)[1]
    command, _ = re.findall(r"^\.venv/bin/penstock (.*?)(?: +#.*)?$", page, re.MULTILINE)[:2]
    (tmp_path / "llama").mkdir()
    name, *argv = shlex.split(command.replace("/models/my-llama", str(tmp_path / "llama")))
    models = parse_options(argv, {}).models
    assert (name, [model.served_name for model in models]) == ("up", ["small", "org/name"])
    (file,) = re.findall(r"```text\n(\[models\].*?)```", page, re.DOTALL)
    options = parse_options([], in_file(tmp_path, file))
    assert options.problems == ()
    assert [(model.served_name, model.model) for model in options.models] == [
        ("small", "/models/my-llama"),
        ("large", "org/name"),
    ]
