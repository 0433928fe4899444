"""Configuration: three sources, later wins, and every wrong value is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.config.config_file import read_config_file
from shared.config.fields import ConfigError, ServiceConfig, field_of, text_of_value
from shared.config.settings import load_config


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(ServiceConfig):
    kv_blocks: int = field_of(512, help="blocks of the KV pool", minimum=1, maximum=1 << 20)
    share: float = field_of(0.5, help="share of the budget", minimum=0.0, maximum=1.0)
    drafts: bool = field_of(True, help="use drafts")
    transport: str = field_of("auto", help="KV transport", choices=("auto", "nats", "shm"))
    stops: tuple[str, ...] = field_of((), help="stop strings")


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    grpc_port: int = field_of(0, help="port", minimum=0, maximum=65535)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


def load(environ: dict[str, str] | None = None, file: Path | None = None) -> DecodeConfig:
    read = None if file is None else read_config_file(file)
    return load_config(DecodeConfig, "decode", environ=environ or {}, file=read)


def test_defaults_need_no_source() -> None:
    assert load() == DecodeConfig()


def test_the_section_wins_over_common_and_the_environment_over_the_file(toml: Path) -> None:
    toml.write_text(
        '[common]\nlog_level = "debug"\nmetrics_port = 1\ninstance = "a"\n'
        '[decode]\nmetrics_port = 2\ninstance = "b"\nkv_blocks = 7\n'
        "[prefill]\nwhatever = 1\n"
    )
    config = load({"PENSTOCK_INSTANCE": "c"}, toml)
    assert (config.log_level, config.metrics_port, config.instance, config.kv_blocks) == ("debug", 2, "c", 7)


def test_a_fleet_key_is_read_and_shown_nowhere() -> None:
    key = "0f" * 32
    config = load({"PENSTOCK_FLEET_KEY": key})
    assert config.fleet_key == key
    assert key not in repr(config)


def test_a_secret_may_lie_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32 + "\n")
    environ = {"PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    assert load_config(ServiceConfig, "decode", environ=environ).fleet_key == "ab" * 32


def test_a_secret_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    environ = {"PENSTOCK_FLEET_KEY": "ab" * 32, "PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    with pytest.raises(ConfigError, match="are both set; set one of them"):
        load_config(ServiceConfig, "decode", environ=environ)


def test_a_secrets_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    environ = {"PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match=r"PENSTOCK_FLEET_KEY_FILE .*none cannot be read \(No such file"):
        load_config(ServiceConfig, "decode", environ=environ)


@pytest.mark.parametrize("wrong", ["0f" * 31, "0F" * 32, "xy" * 32])
def test_a_wrong_secret_is_named_but_not_shown(wrong: str, toml: Path) -> None:
    toml.write_text(f'[common]\nfleet_key = "{wrong}"\n')
    for environ, file in (({"PENSTOCK_FLEET_KEY": wrong}, None), ({}, toml)):
        with pytest.raises(ConfigError, match=r"(?i)fleet_key is not right; it must be text") as caught:
            load(environ, file)
        assert wrong not in str(caught.value)


def test_the_variable_of_the_section_wins_over_the_common_one() -> None:
    config = load({"PENSTOCK_METRICS_PORT": "1", "PENSTOCK_DECODE_METRICS_PORT": "2"})
    assert config.metrics_port == 2


def test_every_type_is_read_from_the_environment() -> None:
    config = load(
        {
            "PENSTOCK_DECODE_KV_BLOCKS": "9",
            "PENSTOCK_DECODE_SHARE": "0.25",
            "PENSTOCK_DECODE_DRAFTS": "off",
            "PENSTOCK_DECODE_TRANSPORT": "shm",
            "PENSTOCK_DECODE_STOPS": "a, b",
        }
    )
    expected = (9, 0.25, False, "shm", ("a", "b"))
    assert (config.kv_blocks, config.share, config.drafts, config.transport, config.stops) == expected


def test_every_type_is_read_from_the_file(toml: Path) -> None:
    toml.write_text('[decode]\nkv_blocks = 9\nshare = 1\ndrafts = false\nstops = ["a", "b,c"]\n')
    config = load(file=toml)
    assert (config.kv_blocks, config.share, config.drafts, config.stops) == (9, 1.0, False, ("a", "b,c"))


def test_the_file_named_by_the_environment_is_read(toml: Path) -> None:
    toml.write_text("[decode]\nkv_blocks = 3\n")
    assert load({"PENSTOCK_CONFIG": str(toml)}).kv_blocks == 3


def test_variables_of_other_sections_do_not_matter() -> None:
    assert load({"PENSTOCK_PREFILL_ANYTHING": "x", "PENSTOCK_TEST_DATA": "/x", "HOME": "/"}) == DecodeConfig()


def test_common_may_name_what_a_section_does_not_have(toml: Path) -> None:
    toml.write_text('[common]\nmodel = "m"\n')
    assert (
        load_config(LauncherConfig, "launcher", environ={"PENSTOCK_MODEL": "m"}, file=read_config_file(toml))
        == LauncherConfig()
    )


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("PENSTOCK_DECODE_KV_BLOCKS", "0", "a whole number from 1 to 1048576"),
        ("PENSTOCK_DECODE_KV_BLOCKS", "2.5", "a whole number"),
        ("PENSTOCK_DECODE_KV_BLOCKS", "", "a whole number"),
        ("PENSTOCK_DECODE_SHARE", "nan", "a finite number from 0 to 1"),
        ("PENSTOCK_DECODE_SHARE", "inf", "a finite number"),
        ("PENSTOCK_DECODE_SHARE", "1.01", "from 0 to 1"),
        ("PENSTOCK_DECODE_SHARE", "half", "a finite number"),
        ("PENSTOCK_DECODE_DRAFTS", "maybe", "true or false"),
        ("PENSTOCK_DECODE_TRANSPORT", "rdma", "one of auto, nats, shm"),
        ("PENSTOCK_METRICS_PORT", "65536", "from 0 to 65535"),
        ("PENSTOCK_INSTANCE", "Decode_1", "matching"),
        ("PENSTOCK_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
    ],
)
def test_a_wrong_value_in_the_environment_is_named_with_what_is_allowed(
    variable: str, text: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load({variable: text})
    assert variable in str(caught.value)
    assert text in str(caught.value)
    assert allowed in str(caught.value)


def test_an_unknown_variable_of_the_section_is_named() -> None:
    with pytest.raises(ConfigError, match=r"PENSTOCK_DECODE_KV_BLOCK is not a setting.*kv_blocks"):
        load({"PENSTOCK_DECODE_KV_BLOCK": "3"})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[decode]\nkv_block = 3", r"\[decode\] kv_block is not a setting"),
        ("[common]\nkv_blocks_of_nobody = 3", r"\[common\] kv_blocks_of_nobody is not a setting"),
        ("[decod]\nkv_blocks = 3", r"\[decod\] is not a table"),
        ("kv_blocks = 3", r"\[kv_blocks\] is not a table"),
        ("[decode]\nkv_blocks = '3'", r"\[decode\] kv_blocks is '3'; it must be a whole number"),
        ("[decode]\nkv_blocks = true", "it must be a whole number"),
        ("[decode]\nshare = nan", "it must be a finite number"),
        ("[decode]\nstops = [1]", "it must be a list of texts"),
        ("[decode", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_key_and_place(toml: Path, text: str, named: str) -> None:
    toml.write_text(text)
    with pytest.raises(ConfigError, match=named) as caught:
        load(file=toml)
    assert str(toml) in str(caught.value)


def test_a_missing_file_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load({"PENSTOCK_CONFIG": str(tmp_path / "absent.toml")})


def test_the_file_in_the_working_directory_is_found(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text("[decode]\nkv_blocks = 4\n")
    monkeypatch.chdir(toml.parent)
    assert load().kv_blocks == 4


def test_a_list_of_one_may_be_said_without_brackets(toml: Path) -> None:
    toml.write_text('[decode]\nstops = "a,b"\n')
    assert load(file=toml).stops == ("a,b",)
    toml.write_text('[decode]\nstops = ""\n')
    assert load(file=toml).stops == ()


def test_a_list_is_one_text_in_the_environment() -> None:
    assert text_of_value(("a", "b")) == "a,b"
    assert load({"PENSTOCK_DECODE_STOPS": text_of_value(("a", "b"))}).stops == ("a", "b")
