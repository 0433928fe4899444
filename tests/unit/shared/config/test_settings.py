"""Where a setting comes from, and what belongs to the model alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from shared.config.config_file import ConfigFile, read_config_file
from shared.config.fields import ConfigError, PathRule, ServiceConfig, field_of
from shared.config.settings import (
    OptionValue,
    Settings,
    SourceKind,
    load_config,
    resolve_settings,
    unknown_variables,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(ServiceConfig):
    threads: int = field_of(1, help="threads", minimum=1)
    kv_dtype: str = field_of("auto", help="of stored KV", choices=("auto", "int8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig(WorkerConfig):
    of_draft: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig(ServiceConfig):
    keys: str = field_of("", help="a file", path=PathRule.ALWAYS)
    corpora: tuple[str, ...] = field_of((), help="folders", path=PathRule.BEHIND_NAME)


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


def resolve(
    text: str = "", environ: dict[str, str] | None = None, *, path: Path | None = None, **more: object
) -> Settings:
    file = ConfigFile()
    if path is not None:
        path.write_text(text)
        file = read_config_file(path)
    return resolve_settings(WorkerConfig, "decode", environ=environ or {}, file=file, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "winner"),
    [
        ("", (1, SourceKind.DEFAULT, "default")),
        ("stack", (2, SourceKind.STACK, "penstock up")),
        ("stack file", (3, SourceKind.FILE, "{file}:2 [decode]")),
        ("stack file environment", (4, SourceKind.ENVIRONMENT, "PENSTOCK_DECODE_THREADS")),
        ("stack file environment option", (5, SourceKind.COMMAND_LINE, "--threads")),
    ],
)
def test_each_source_wins_over_those_before_it_and_is_named(
    sources: str, winner: tuple[int, SourceKind, str], write: Path
) -> None:
    settings = resolve(
        "[decode]\nthreads = 3\n" if "file" in sources else "",
        {"PENSTOCK_DECODE_THREADS": "4"} if "environment" in sources else {},
        path=write,
        stack={"threads": 2} if "stack" in sources else {},
        options={"threads": OptionValue(5, "--threads")} if "option" in sources else {},
    )
    setting = settings["threads"]
    value, kind, source = winner
    assert (setting.value, setting.kind, setting.source) == (value, kind, source.format(file=write))


def test_an_option_wins_over_the_variable_of_the_one_service() -> None:
    settings = resolve(
        environ={"PENSTOCK_DECODE_LOG_LEVEL": "error"},
        options={"log_level": OptionValue("debug", "--log-level")},
    )
    assert settings["log_level"].value == "debug"


def test_the_line_is_that_of_the_table_that_counts(write: Path) -> None:
    settings = resolve(
        '# first\n[common]\nlog_level = "debug"\n\n[decode]\nlog_level = "error"\n', path=write
    )
    assert settings["log_level"].source == f"{write}:6 [decode]"


def test_what_is_written_in_a_rarer_way_is_named_with_its_file(write: Path) -> None:
    settings = resolve("decode = { threads = 3 }\n", path=write)
    assert (settings["threads"].value, settings["threads"].source) == (3, f"{write} [decode]")


def test_every_problem_is_told_and_not_only_the_first(write: Path) -> None:
    settings = resolve(
        '[decode]\nthreads = 0\nthread = 1\n[common]\nlog_level = "loud"\n[decod]\nx = 1\n',
        {"PENSTOCK_DECODE_THREADS": "many", "PENSTOCK_DECODE_X": "1"},
        path=write,
    )
    words = ("[decod]", "loud", "threads is 0", "[decode] thread ", "'many'", "PENSTOCK_DECODE_X")
    assert [word for word in words if sum(word in problem for problem in settings.problems) == 1] == list(
        words
    )
    with pytest.raises(ConfigError, match=r"decod\].*PENSTOCK_DECODE_X"):
        settings.config(WorkerConfig)


def test_a_setting_of_the_model_is_read_from_its_table_and_its_variable(write: Path) -> None:
    text = '[model]\nkv_dtype = "int8"\nserved_name = "ours"\n'
    assert resolve(text, path=write)["kv_dtype"].source == f"{write}:2 [model]"
    assert resolve(text, path=write)["served_name"].value == "ours"
    assert resolve(environ={"PENSTOCK_MODEL_KV_DTYPE": "int8"})["kv_dtype"].value == "int8"


@pytest.mark.parametrize("table", ["common", "decode"])
def test_a_setting_of_the_model_in_another_table_is_refused_with_its_place(table: str, write: Path) -> None:
    (problem,) = resolve(f'[{table}]\nkv_dtype = "int8"\n', path=write).problems
    assert problem.startswith(f"{write}:2: [{table}] kv_dtype stands in the wrong place")
    assert problem.endswith("as [model] kv_dtype")


def test_a_setting_of_the_model_in_a_service_s_variable_is_refused_with_its_place() -> None:
    (problem,) = resolve(environ={"PENSTOCK_DECODE_KV_DTYPE": "int8"}).problems
    assert problem.endswith("as PENSTOCK_MODEL_KV_DTYPE")


@pytest.mark.parametrize("environ", [{"PENSTOCK_MODEL_KV_TYPE": "int8"}])
def test_what_the_model_does_not_have_is_refused(environ: dict[str, str], write: Path) -> None:
    assert "PENSTOCK_MODEL_KV_TYPE is not a setting" in resolve(environ=environ).problems[0]
    assert "[model] kv_type is not a setting" in resolve("[model]\nkv_type = 1\n", path=write).problems[0]


def test_a_draft_has_settings_of_its_own(write: Path) -> None:
    write.write_text('[common]\nmodel = "target"\n[model]\nkv_dtype = "int8"\n[speculator]\nthreads = 2\n')
    environ = {"PENSTOCK_MODEL": "target", "PENSTOCK_MODEL_SERVED_NAME": "ours"}
    draft = load_config(DraftConfig, "speculator", environ=environ, file=read_config_file(write))
    assert (draft.model, draft.kv_dtype, draft.served_name, draft.threads) == ("", "auto", "", 2)
    own = {"PENSTOCK_SPECULATOR_MODEL": "draft", "PENSTOCK_SPECULATOR_KV_DTYPE": "int8"}
    draft = load_config(DraftConfig, "speculator", environ=own, file=ConfigFile())
    assert (draft.model, draft.kv_dtype) == ("draft", "int8")


def test_a_variable_that_nobody_reads_is_named() -> None:
    read = {
        "PENSTOCK_FLEET_KEY_FILE": "f",
        "PENSTOCK_LOG_LEVEL": "debug",
        "PENSTOCK_MODEL_KV_DTYPE": "int8",
        "PENSTOCK_CONFIG": "f",
        "HOME": "/",
    }
    assert unknown_variables(read) == []
    (problem,) = unknown_variables({**read, "PENSTOCK_LOGLEVEL": "debug"})
    assert problem.startswith("PENSTOCK_LOGLEVEL is not read by anything")
    assert "PENSTOCK_LOG_LEVEL" in problem


def test_a_relative_path_in_the_file_counts_from_the_file_s_folder(
    write: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write.write_text('[gateway]\nkeys = "keys.toml"\n[common]\nnats_credentials = "/run/nats.toml"\n')
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    file = read_config_file(Path(os.path.relpath(write)))
    settings = resolve_settings(FilesConfig, "gateway", environ={}, file=file)
    assert os.path.normpath(settings["keys"].value) == str(write.parent / "keys.toml")
    assert settings["nats_credentials"].value == "/run/nats.toml"


def test_a_relative_path_behind_a_name_in_the_file_counts_from_the_file_s_folder(write: Path) -> None:
    write.write_text('[gateway]\ncorpora = ["a@acme=docs", "b=/srv", "c=~/docs", "./d=e"]\n')
    settings = resolve_settings(FilesConfig, "gateway", environ={}, file=read_config_file(write))
    folder = str(write.parent)
    assert settings["corpora"].value == (f"a@acme={folder}/docs", "b=/srv", "c=~/docs", f"{folder}/d=e")


def test_a_relative_path_in_the_environment_counts_from_where_the_service_runs(write: Path) -> None:
    write.write_text("")
    settings = resolve_settings(
        FilesConfig, "gateway", environ={"PENSTOCK_GATEWAY_KEYS": "keys.toml"}, file=read_config_file(write)
    )
    assert settings["keys"].value == "keys.toml"


def test_a_model_in_the_file_is_a_folder_beside_it_or_a_hub_id(write: Path) -> None:
    text = '[common]\nmodel = "models/ours"\n'
    assert resolve(text, path=write)["model"].value == "models/ours"
    (write.parent / "models" / "ours").mkdir(parents=True)
    assert resolve(text, path=write)["model"].value == str(write.parent / "models" / "ours")


@pytest.mark.parametrize("text", ["", "~/keys.toml"])
def test_what_is_empty_or_in_the_home_folder_stays_as_it_is(text: str, write: Path) -> None:
    write.write_text(f'[gateway]\nkeys = "{text}"\n')
    settings = resolve_settings(FilesConfig, "gateway", environ={}, file=read_config_file(write))
    assert settings["keys"].value == text
