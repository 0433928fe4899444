from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.options import REPOSITORY, SHIPPED_DRAFT, parse_options
from services.launcher.plan import plan_instances, threads_per_model
from services.launcher.state import credentials_file

PORTS = {"grpc_ports": [1], "http_ports": [2]}


def test_the_default_is_one_of_each_with_the_shipped_models_and_documentation() -> None:
    options = parse_options([], {})
    assert set(options.counts.values()) == {1}
    assert (options.model, options.draft) == ("", str(SHIPPED_DRAFT))
    assert options.corpus == str(REPOSITORY / "services")
    assert (options.grpc_host, options.grpc_port, options.kv_transport) == ("127.0.0.1", 50051, "auto")
    assert options.http_port == 8000


def test_another_model_gets_no_shipped_draft(tmp_path: Path) -> None:
    options = parse_options(["--model", str(tmp_path)], {})
    assert (options.model, options.draft, options.counts["speculator"]) == (str(tmp_path), "", 0)
    options = parse_options([], {"PENSTOCK_MODEL": "org/name"})
    assert (options.model, options.draft) == ("org/name", "")


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--decode", "-1"], "--decode"),
        (["--decode", "nan"], "--decode"),
        (["--decode", "1.5"], "--decode"),
        (["--decode", "0"], "--decode"),
        (["--decode", "1000"], "--decode"),
        (["--retriever", "-2"], "--retriever"),
        (["--grpc-port", "70000"], "--grpc-port"),
        (["--grpc-port", "x"], "--grpc-port"),
        (["--model", "/nowhere/at/all"], "--model"),
        (["--draft", "./nowhere"], "--draft"),
        (["--corpus", "/nowhere/at/all"], "--corpus"),
        (["--nats-url", "localhost"], "--nats-url"),
        (["--nats-url", "http://localhost:4222"], "--nats-url"),
        (["--kv-transport", "rdma"], "--kv-transport"),
        (["--start-timeout", "nan"], "--start-timeout"),
        (["--start-timeout", "-1"], "--start-timeout"),
        (["--draft", "none", "--speculator", "1"], "--draft"),
        (["--unknown"], "--unknown"),
    ],
)
def test_a_wrong_option_exits_2_and_is_named(
    argv: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(argv, {})
    assert caught.value.code == 2
    assert word in capsys.readouterr().err


def test_retriever_and_speculator_may_be_left_out() -> None:
    options = parse_options(["--retriever", "0", "--speculator", "0"], {})
    specs = plan_instances(options, nats_url="nats://h:1", **PORTS, environ={})
    assert [spec.role for spec in specs] == ["gateway", "tokenizer", "prefill", "decode", "detokenizer"]


def test_every_process_is_told_who_it_is_and_where_the_bus_is(tmp_path: Path) -> None:
    argv = ["--gateway", "2", "--decode", "2", "--model", str(tmp_path), "--draft", "org/draft"]
    argv += ["--kv-transport", "shm", "--corpus", str(tmp_path), "--log-level", "debug"]
    options = parse_options(argv, {})
    specs = {
        spec.instance: spec
        for spec in plan_instances(
            options, nats_url="nats://h:1", grpc_ports=[7, 8], http_ports=[9, 10], environ={"A": "b"}
        )
    }
    assert sorted(specs) == sorted(
        [
            "gateway-0",
            "gateway-1",
            "tokenizer-0",
            "retriever-0",
            "prefill-0",
            "decode-0",
            "decode-1",
            "speculator-0",
            "detokenizer-0",
        ]
    )
    for name, spec in specs.items():
        assert spec.command[-2:] == ("-m", f"services.{spec.role}")
        assert spec.environ["PENSTOCK_INSTANCE"] == name
        assert spec.environ["PENSTOCK_NATS_URL"] == "nats://h:1"
        assert spec.environ["PENSTOCK_MODEL"] == str(tmp_path)
        assert spec.environ["PENSTOCK_LOG_LEVEL"] == "debug"
        assert spec.environ["A"] == "b"
    assert [specs[f"gateway-{n}"].environ["PENSTOCK_GATEWAY_GRPC_PORT"] for n in (0, 1)] == ["7", "8"]
    assert [specs[f"gateway-{n}"].environ["PENSTOCK_GATEWAY_HTTP_PORT"] for n in (0, 1)] == ["9", "10"]
    assert specs["speculator-0"].environ["PENSTOCK_SPECULATOR_MODEL"] == "org/draft"
    assert specs["decode-1"].environ["PENSTOCK_DECODE_KV_TRANSPORT"] == "shm"
    assert specs["retriever-0"].environ["PENSTOCK_RETRIEVER_CORPUS"] == str(tmp_path)
    assert "PENSTOCK_DECODE_KV_TRANSPORT" not in specs["prefill-0"].environ


def test_on_a_bus_of_our_own_every_process_has_credentials_of_its_own(tmp_path: Path) -> None:
    options = parse_options(
        ["--decode", "2", "--state-dir", str(tmp_path)], {"PENSTOCK_NATS_CREDENTIALS": "/f"}
    )
    environ = {"PENSTOCK_NATS_CREDENTIALS": "/f"}
    specs = plan_instances(options, nats_url="nats://h:1", **PORTS, environ=environ)
    files = {spec.instance: spec.environ["PENSTOCK_NATS_CREDENTIALS"] for spec in specs}
    assert files == {name: str(credentials_file(tmp_path, name)) for name in files}


def test_on_a_bus_of_the_user_every_process_has_the_credentials_of_the_user() -> None:
    environ = {"PENSTOCK_NATS_CREDENTIALS": "/f"}
    options = parse_options(["--nats-url", "nats://h:1"], environ)
    assert options.nats_credentials == "/f"
    specs = plan_instances(options, nats_url="nats://h:1", **PORTS, environ=environ)
    assert {spec.environ["PENSTOCK_NATS_CREDENTIALS"] for spec in specs} == {"/f"}


def fleet_keys(environ: dict[str, str]) -> set[str | None]:
    specs = plan_instances(parse_options([], {}), nats_url="nats://h:1", **PORTS, environ=environ)
    return {spec.environ.get("PENSTOCK_FLEET_KEY") for spec in specs}


def test_all_processes_of_a_stack_get_one_new_key() -> None:
    first, second = fleet_keys({}), fleet_keys({})
    assert len(first) == len(second) == len(second - first) == 1
    assert all(key is not None and len(bytes.fromhex(key)) == 32 for key in first)


def test_a_key_that_the_user_has_set_stays(tmp_path: Path) -> None:
    key = "0f" * 32
    assert fleet_keys({"PENSTOCK_FLEET_KEY": key}) == {key}
    file = tmp_path / "penstock.toml"
    file.write_text(f'[common]\nfleet_key = "{key}"\n')
    assert fleet_keys({"PENSTOCK_CONFIG": str(file)}) == {None}  # the services read it themselves


def test_model_processes_share_the_cores_and_the_user_may_say_otherwise() -> None:
    assert threads_per_model({"prefill": 500, "decode": 500, "speculator": 0}) == 1
    environ = {"PENSTOCK_DECODE_THREADS": "7"}
    specs = plan_instances(parse_options([], {}), nats_url="nats://h:1", **PORTS, environ=environ)
    threads = {spec.role: spec.environ.get(f"PENSTOCK_{spec.role.upper()}_THREADS") for spec in specs}
    assert threads["decode"] == "7"
    assert threads["prefill"] == str(threads_per_model({"prefill": 1, "decode": 1, "speculator": 1}))
    assert threads["gateway"] is None
