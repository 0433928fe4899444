from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from services.launcher.adapters import prepare_adapter_file
from services.launcher.options import ADAPTER_FILE_NAME, REPOSITORY, SHIPPED_DRAFT, parse_options
from services.launcher.plan import plan_instances, stand_in_names, stand_in_spec
from services.launcher.processes.instance import InstanceSpec
from services.launcher.role_settings import config_type
from services.launcher.state import credentials_file
from shared.config.fields import text_of_value
from shared.config.named_corpus import NamedCorpus
from shared.config.settings import load_config
from shared.errors import InvalidRequest
from shared.files.adapter_file import WantedAdapter, put_adapters, read_adapter_file
from shared.process.cores import usable_cores
from shared.roles import ROLES


def in_file(folder: Path, text: str) -> dict[str, str]:
    """The environment in which a configuration file says so."""
    (folder / "penstock.toml").write_text(text)
    return {"PENSTOCK_CONFIG": str(folder / "penstock.toml")}


def planned(argv: list[str], environ: dict[str, str]) -> list[InstanceSpec]:
    options = parse_options(argv, environ)
    ports = list(range(7, 7 + options.counts["gateway"]))
    return plan_instances(options, nats_url="nats://h:1", grpc_ports=ports, http_ports=ports, environ=environ)


def config_of(role: str, argv: list[str], environ: dict[str, str]) -> Any:
    """What the first process of a role reads from its environment."""
    spec = next(spec for spec in planned(argv, environ) if spec.role == role)
    return load_config(config_type(role), role, environ=spec.environ)


def test_the_default_is_one_of_each_with_the_shipped_models_and_documentation() -> None:
    options = parse_options([], {})
    assert set(options.counts.values()) == {1}
    assert (options.model, options.draft) == ("", str(SHIPPED_DRAFT))
    documents = REPOSITORY / "shared" / "demo" / "documents"
    assert options.settings["retriever"]["corpus"].value == (str(documents),)
    assert options.settings["decode"]["kv_transport"].value == "auto"
    assert (options.grpc_host, options.grpc_port, options.problems) == ("127.0.0.1", 50051, ())
    assert options.http_port == 8000


def test_another_model_gets_no_shipped_draft(tmp_path: Path) -> None:
    options = parse_options(["--model", str(tmp_path)], {})
    assert (options.model, options.draft, options.counts["speculator"]) == (str(tmp_path), "", 0)
    options = parse_options([], {"PENSTOCK_MODEL": "org/name"})
    assert (options.model, options.draft, options.counts["speculator"]) == ("org/name", "", 0)
    options = parse_options([], in_file(tmp_path, '[common]\nmodel = "org/name"\n'))
    assert (options.model, options.draft, options.counts["speculator"]) == ("org/name", "", 0)


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--decode", "-1"], "--decode"),
        (["--decode", "nan"], "--decode"),
        (["--adapter", "a b=."], "is no name for an adapter"),
        (["--adapter", "sql"], "'' is not a folder; write sql=DIR"),
        (["--adapter", "sql=/nowhere"], "'/nowhere' is not a folder"),
        (["--decode", "1.5"], "--decode"),
        (["--decode", "0"], "--decode"),
        (["--decode", "1000"], "--decode"),
        (["--retriever", "-2"], "--retriever"),
        (["--grpc-port", "70000"], "--grpc-port"),
        (["--grpc-port", "x"], "--grpc-port"),
        (["--model", "/nowhere/at/all"], "--model"),
        (["--draft", "./nowhere"], "--draft"),
        (["--corpus", "/nowhere/at/all"], "--corpus /nowhere/at/all: there is no folder or file"),
        (["--corpus", "a=."] * 2, "two corpora have the name 'a'"),
        (["--corpus", "a@=."], "'' is no tenant's name"),
        (["--corpus", "none", "--corpus", "."], "--corpus none leaves nothing to search"),
        (["--corpus", "/,"], "--corpus /, has a comma: say it in the list `corpus` of penstock.toml"),
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
    specs = plan_instances(options, nats_url="nats://h:1", grpc_ports=[1], http_ports=[2], environ={})
    assert [spec.role for spec in specs] == ["gateway", "tokenizer", "prefill", "decode", "detokenizer"]


def test_every_process_is_told_who_it_is_and_where_the_bus_is(tmp_path: Path) -> None:
    argv = ["--gateway", "2", "--decode", "2", "--model", str(tmp_path), "--draft", "org/draft"]
    argv += ["--kv-transport", "shm", "--corpus", str(tmp_path), "--log-level", "debug"]
    options = parse_options(argv, {})
    specs = {
        spec.instance: spec
        for spec in plan_instances(
            options, nats_url="nats://h:1", grpc_ports=[7, 8], http_ports=[17, 18], environ={"A": "b"}
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
        if spec.role != "speculator":
            assert spec.environ["PENSTOCK_MODEL"] == str(tmp_path)
        assert spec.environ["PENSTOCK_LOG_LEVEL"] == "debug"
        assert spec.environ["A"] == "b"
    assert [specs[f"gateway-{n}"].environ["PENSTOCK_GATEWAY_GRPC_PORT"] for n in (0, 1)] == ["7", "8"]
    assert specs["speculator-0"].environ["PENSTOCK_SPECULATOR_MODEL"] == "org/draft"
    assert specs["decode-1"].environ["PENSTOCK_DECODE_KV_TRANSPORT"] == "shm"
    assert specs["retriever-0"].environ["PENSTOCK_RETRIEVER_CORPUS"] == str(tmp_path)
    assert "PENSTOCK_DECODE_KV_TRANSPORT" not in specs["prefill-0"].environ


def test_on_a_bus_of_our_own_every_process_has_credentials_of_its_own(tmp_path: Path) -> None:
    options = parse_options(["--decode", "2", "--state-dir", str(tmp_path)], {})
    specs = plan_instances(options, nats_url="nats://h:1", grpc_ports=[1], http_ports=[2], environ={})
    files = {spec.instance: spec.environ["PENSTOCK_NATS_CREDENTIALS"] for spec in specs}
    assert files == {name: str(credentials_file(tmp_path, name)) for name in files}


def test_on_a_bus_of_the_user_every_process_has_the_credentials_of_the_user() -> None:
    environ = {"PENSTOCK_NATS_CREDENTIALS": "/f"}
    options = parse_options(["--nats-url", "nats://h:1"], environ)
    assert options.nats_credentials == "/f"
    specs = plan_instances(options, nats_url="nats://h:1", grpc_ports=[1], http_ports=[2], environ=environ)
    assert {spec.environ["PENSTOCK_NATS_CREDENTIALS"] for spec in specs} == {"/f"}


def fleet_keys(environ: dict[str, str]) -> set[str | None]:
    return {spec.environ.get("PENSTOCK_FLEET_KEY") for spec in planned([], environ)}


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


def test_model_processes_may_use_all_cores_and_the_user_may_say_otherwise() -> None:
    environ = {"PENSTOCK_DECODE_THREADS": "7"}
    told = {spec.role: spec.environ for spec in planned([], environ)}
    assert (told["decode"]["PENSTOCK_DECODE_THREADS"], told["decode"]["OMP_NUM_THREADS"]) == ("7", "7")
    assert "PENSTOCK_PREFILL_THREADS" not in told["prefill"]
    assert told["prefill"]["OMP_NUM_THREADS"] == str(usable_cores())
    assert "OMP_NUM_THREADS" not in told["gateway"]


SAID = [
    ("gateway", "grpc_host", "0.0.0.0", "[gateway]", ["--grpc-host", "::1"], "::1"),
    ("gateway", "log_level", "debug", "[common]", ["--log-level", "error"], "error"),
    ("retriever", "corpus", ("/documents", "a@acme=/a"), "[retriever]", ["--corpus", "none"], ()),
    ("decode", "kv_transport", "nats", "[decode]", ["--kv-transport", "shm"], "shm"),
    ("decode", "threads", 3, "[decode]", [], None),
    ("retriever", "state_dir", "/elsewhere", "[retriever]", [], None),
    ("prefill", "model", "org/a", "[common]", ["--model", "org/b"], "org/b"),
    ("speculator", "model", "org/c", "[speculator]", ["--draft", "org/d"], "org/d"),
]
"""Role, setting, a value, its table, and options that say something else."""
IDS = [f"{case[0]}-{case[1]}" for case in SAID]


@pytest.mark.parametrize(("role", "name", "value", "table", "argv", "asked"), SAID, ids=IDS)
def test_the_file_wins_over_what_a_stack_sets_and_options_over_both(
    role: str, name: str, value: object, table: str, argv: list[str], asked: object, tmp_path: Path
) -> None:
    said = json.dumps(value)  # as TOML writes it too
    environ = in_file(tmp_path, f"{table}\n{name} = {said}\n")
    assert getattr(config_of(role, [], environ), name) == value
    if argv:
        assert getattr(config_of(role, argv, environ), name) == asked


@pytest.mark.parametrize(("role", "name", "value", "table", "argv", "asked"), SAID, ids=IDS)
def test_the_environment_wins_over_what_a_stack_sets_and_options_over_both(
    role: str, name: str, value: object, table: str, argv: list[str], asked: object
) -> None:
    environ = {f"PENSTOCK_{role.upper()}_{name.upper()}": text_of_value(value)}
    if name == "model" and role == "prefill":  # every other service needs the same
        environ = {"PENSTOCK_MODEL": str(value)}
    assert getattr(config_of(role, [], environ), name) == value
    if argv:
        assert getattr(config_of(role, argv, environ), name) == asked


def test_corpora_of_the_command_line_reach_the_retriever_by_name_path_and_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.md").write_text("Note.")
    (tmp_path / "a=b").mkdir()
    monkeypatch.chdir(tmp_path)
    argv = [
        "--corpus",
        ".",
        "--corpus",
        "one@acme+rival=notes.md",
        "--corpus",
        "odd=./a=b",
        "--corpus",
        "all=*.md",
    ]
    config = config_of("retriever", argv, {})
    assert config.named_corpora() == (
        NamedCorpus("default", str(tmp_path)),
        NamedCorpus("one", str(tmp_path / "notes.md"), ("acme", "rival")),
        NamedCorpus("odd", str(tmp_path / "a=b")),
        NamedCorpus("all", str(tmp_path / "*.md")),
    )


def test_corpora_that_the_file_names_in_a_wrong_way_are_a_problem_before_anything_starts(
    tmp_path: Path,
) -> None:
    environ = in_file(tmp_path, '[retriever]\ncorpus = ["a=/a", "a=/b"]\n')
    (problem,) = parse_options([], environ).problems
    assert problem.startswith("retriever: two corpora have the name 'a', /a and /b")


def test_a_nats_server_and_a_port_that_the_file_names_are_used(tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[common]\nnats_url = "nats://bus:1"\n[gateway]\ngrpc_port = 6000\n')
    options = parse_options([], environ)
    assert (options.nats_url, options.grpc_port, options.problems) == ("nats://bus:1", 6000, ())
    assert parse_options(["--nats-url", "nats://other:1", "--grpc-port", "0"], environ).grpc_port == 0
    assert parse_options(["--nats-url", "nats://other:1"], environ).nats_url == "nats://other:1"


def test_the_file_of_the_working_directory_reaches_every_process_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file(tmp_path, "[decode]\nkv_blocks = 9\n")
    monkeypatch.chdir(tmp_path)
    specs = planned([], {})
    relative = planned([], {"PENSTOCK_CONFIG": "penstock.toml"})
    os.chdir("/")
    assert {spec.environ["PENSTOCK_CONFIG"] for spec in (*specs, *relative)} == {
        str(tmp_path / "penstock.toml")
    }


@pytest.mark.parametrize(
    ("text", "argv", "words"),
    [
        ('[common]\ninstance = "me"\n', [], ("penstock.toml:2", "instance", "leave it out")),
        ("[common]\nmetrics_port = 9100\n", [], ("penstock.toml:2", "9100", "7 would take it")),
        ("[decode]\nmetrics_port = 9100\n", ["--decode", "2"], ("penstock.toml:2", "2 would take it")),
        ('[common]\nnats_credentials = "/f"\n', [], ("nats_credentials", "add nats_url")),
        ('[decode]\nmodel = "org/a"\n', [], ("model is not the same", "decode (", "[common]")),
        ('[decode]\nnats_url = "nats://h:1"\n', [], ("nats_url is not the same", "decode (")),
        ("[decode]\nmax_sequences = 4000\n", [], ("decode: max_batch_tokens", "below max_sequences")),
        ('[decode]\ncpus = "one"\n', [], ("decode: ", "0,2-3")),
        ("[decode", [], ("penstock.toml is not TOML",)),
    ],
)
def test_what_cannot_be_for_a_stack_is_a_problem_and_not_ignored(
    text: str, argv: list[str], words: tuple[str, ...], tmp_path: Path
) -> None:
    (problem,) = parse_options(argv, in_file(tmp_path, text)).problems
    assert [word for word in words if word in problem] == list(words)


def test_a_metrics_port_for_the_one_instance_of_a_service_stays(tmp_path: Path) -> None:
    environ = in_file(tmp_path, "[gateway]\nmetrics_port = 9100\n")
    assert parse_options([], environ).problems == ()
    assert config_of("gateway", [], environ).metrics_port == 9100
    assert config_of("decode", [], environ).metrics_port == 0


def test_the_same_mistake_is_told_once_though_every_service_reads_it(tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[common]\nlog_level = "loud"\nnats = 1\n[decod]\n')
    assert len(parse_options([], environ).problems) == 3


def test_http_listens_where_grpc_does_unless_it_is_said() -> None:
    assert config_of("gateway", ["--grpc-host", "0.0.0.0"], {}).http_host == "0.0.0.0"
    environ = {"PENSTOCK_GATEWAY_HTTP_HOST": "127.0.0.2"}
    assert config_of("gateway", ["--grpc-host", "0.0.0.0"], environ).http_host == "127.0.0.2"


def test_each_gateway_has_a_port_for_http() -> None:
    options = parse_options(["--gateway", "2", "--http-port", "0"], {})
    assert options.http_port == 0
    specs = plan_instances(options, nats_url="nats://h:1", grpc_ports=[7, 8], http_ports=[17, 18], environ={})
    ports = [spec.environ["PENSTOCK_GATEWAY_HTTP_PORT"] for spec in specs if spec.role == "gateway"]
    assert ports == ["17", "18"]


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_gateways_share_their_ports_also_with_what_stands_in_for_the_only_one(gateways: str) -> None:
    assert parse_options(["--gateway", gateways], {}).share_ports
    assert config_of("gateway", ["--gateway", gateways], {}).share_ports


def test_what_stands_in_for_an_instance_is_the_same_under_another_name(tmp_path: Path) -> None:
    environ = {"PENSTOCK_DECODE_DRAIN_TIMEOUT_S": "5"}
    options = parse_options(["--decode", "2", "--state-dir", str(tmp_path)], environ)
    specs = plan_instances(options, nats_url="nats://h:1", grpc_ports=[7], http_ports=[17], environ=environ)
    spec = next(spec for spec in specs if spec.instance == "decode-0")
    assert stand_in_names(options.counts)[4] == ("decode", "decode-2")
    stand_in = stand_in_spec(spec, "decode-2", options)
    changed = dict(stand_in.environ.items() - spec.environ.items())
    assert (stand_in.role, stand_in.instance, stand_in.command) == ("decode", "decode-2", spec.command)
    assert changed == {
        "PENSTOCK_INSTANCE": "decode-2",
        "PENSTOCK_NATS_CREDENTIALS": str(credentials_file(tmp_path, "decode-2")),
        "PENSTOCK_DECODE_DRAIN_TIMEOUT_S": "3600",
    }


def test_gateways_have_ports_of_their_own_where_that_is_said() -> None:
    environ = {"PENSTOCK_GATEWAY_SHARE_PORTS": "false"}
    assert not parse_options(["--gateway", "2"], environ).share_ports


@pytest.mark.parametrize("role", ["prefill", "decode", "speculator"])
def test_all_engines_follow_one_file_of_adapters_of_the_state_directory(role: str, tmp_path: Path) -> None:
    config = config_of(role, ["--state-dir", str(tmp_path)], {})
    assert config.adapter_file == str(tmp_path / ADAPTER_FILE_NAME)


@pytest.mark.parametrize("role", ["prefill", "decode", "speculator"])
def test_or_the_one_that_is_configured(role: str, tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[model]\nadapter_file = "mine.toml"\n')
    assert config_of(role, [], environ).adapter_file == str(tmp_path / "mine.toml")
    assert parse_options([], environ).adapter_file == tmp_path / "mine.toml"


def test_a_speculator_may_follow_another_one(tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[model]\nadapter_file = "a.toml"\n[speculator]\nadapter_file = "b.toml"\n')
    assert config_of("speculator", [], environ).adapter_file == str(tmp_path / "b.toml")


def test_adapters_of_the_command_line_are_those_that_a_stack_begins_with(tmp_path: Path) -> None:
    argv = ["--state-dir", str(tmp_path), "--adapter", f"sql={tmp_path}"]
    argv += ["--adapter", f"chat@acme+rival={tmp_path}"]
    prepare_adapter_file(parse_options(argv, {"PENSTOCK_MODEL_SERVED_NAME": "m"}))
    wanted = [
        (each.base, each.name, each.directory, each.tenants)
        for each in read_adapter_file(tmp_path / ADAPTER_FILE_NAME)
    ]
    assert wanted == [("m", "sql", str(tmp_path), ()), ("m", "chat", str(tmp_path), ("acme", "rival"))]
    prepare_adapter_file(parse_options(argv[:2], {}))
    assert read_adapter_file(tmp_path / ADAPTER_FILE_NAME) == ()


def test_they_are_added_to_a_file_of_the_user(tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[model]\nadapter_file = "mine.toml"\n')
    put_adapters(tmp_path / "mine.toml", [WantedAdapter("penstock-demo", "chat", "/chat")])
    prepare_adapter_file(parse_options(["--adapter", f"sql={tmp_path}"], environ))
    assert [each.name for each in read_adapter_file(tmp_path / "mine.toml")] == ["chat", "sql"]


def test_a_file_of_adapters_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    environ = in_file(tmp_path, '[model]\nadapter_file = "nothing/mine.toml"\n')
    with pytest.raises(InvalidRequest, match=r"mine\.toml cannot be written \(No such file"):
        prepare_adapter_file(parse_options(["--adapter", f"sql={tmp_path}"], environ))


@pytest.mark.parametrize(
    ("argv", "text", "shown"),
    [
        ([], "", set()),
        (["--log-format", "text"], "", set(ROLES)),
        ([], '[common]\nlog_format = "text"\n', set(ROLES)),
        ([], '[decode]\nlog_format = "text"\n', {"decode"}),
        (["--log-format", "json"], '[decode]\nlog_format = "text"\n', set()),
    ],
)
def test_services_log_json_whatever_is_shown_of_them(
    tmp_path: Path, argv: list[str], text: str, shown: set[str]
) -> None:
    """The log of the stack keeps it; the launcher makes text of it where that is wanted."""
    environ = in_file(tmp_path, text)
    assert parse_options(argv, environ).text_roles == shown
    assert {config_of(role, argv, environ).log_format for role in ("gateway", "decode")} == {"json"}
    own = environ | {"PENSTOCK_DECODE_LOG_FORMAT": "text"}
    assert config_of("decode", argv, own).log_format == "json"


def test_on_a_terminal_all_are_shown_as_text_unless_somebody_has_said_otherwise() -> None:
    assert parse_options([], {}, on_terminal=True).text_roles == set(ROLES)
    assert parse_options([], {"PENSTOCK_LOG_FORMAT": "json"}, on_terminal=True).text_roles == set()


def test_a_stack_is_detached_on_demand() -> None:
    assert [parse_options(argv, {}).detach for argv in ([], ["-d"], ["--detach"])] == [False, True, True]
