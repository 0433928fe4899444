"""Gateways with a detokenizer of their own: one process less, and a user of the bus for each of the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.detokenizer.config import DetokenizerConfig
from services.gateway.config import GatewayConfig
from services.launcher.options import StackOptions, parse_options
from services.launcher.plan import bus_users, named_spec, plan_instances, preloaded, stand_in_spec
from services.launcher.processes.instance import InstanceSpec
from services.launcher.state import credentials_file
from shared.config.settings import load_config
from shared.roles import inner_instance

OWN = {"PENSTOCK_GATEWAY_OWN_DETOKENIZER": "true"}


def planned(options: StackOptions, environ: dict[str, str]) -> list[InstanceSpec]:
    ports = list(range(7, 7 + options.counts["gateway"]))
    return plan_instances(options, nats_url="nats://h:1", grpc_ports=ports, http_ports=ports, environ=environ)


def test_no_other_detokenizer_is_started_unless_it_is_asked_for() -> None:
    assert parse_options([], OWN).counts["detokenizer"] == 0
    assert parse_options(["--detokenizer", "2"], OWN).counts["detokenizer"] == 2
    assert parse_options([], {}).counts["detokenizer"] == 1
    with pytest.raises(SystemExit):
        parse_options(["--detokenizer", "0"], {})


def test_the_gateway_s_process_is_told_of_both_and_each_has_its_user(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    argv = ["--gateway", "2", "--model", f"name={model}", "--state-dir", str(tmp_path)]
    options = parse_options(argv, OWN)
    specs = planned(options, OWN)
    assert [spec.instance for spec in specs if spec.role in ("gateway", "detokenizer")] == [
        "gateway-0",
        "gateway-1",
    ]
    spec = next(spec for spec in specs if spec.instance == "gateway-1")
    assert (spec.inner, spec.module) == ("detokenizer-gateway1", "services.gateway")
    gateway = load_config(GatewayConfig, "gateway", environ=spec.environ)
    inner = load_config(DetokenizerConfig, "detokenizer", environ=spec.environ)
    assert gateway.own_detokenizer
    assert gateway.nats_credentials == str(credentials_file(tmp_path, "gateway-1"))
    assert inner.nats_credentials == str(credentials_file(tmp_path, "detokenizer-gateway1"))
    assert (inner.model, inner.served_name, inner.fleet_key) == (str(model), "name", gateway.fleet_key)
    assert {"detokenizer-gateway0", "detokenizer-gateway1", "detokenizer-gateway2"} == {
        name for role, name in bus_users(options) if role == "detokenizer"
    }
    assert "services.detokenizer.__main__" in preloaded(options)


@pytest.mark.parametrize("beside", [stand_in_spec, named_spec], ids=["stands in", "is one more"])
def test_what_does_the_same_under_another_name_has_its_own_too(tmp_path: Path, beside: object) -> None:
    options = parse_options(["--state-dir", str(tmp_path)], OWN)
    spec = next(spec for spec in planned(options, OWN) if spec.role == "gateway")
    other = beside(spec, "gateway-1", options)  # type: ignore[operator]
    inner = load_config(DetokenizerConfig, "detokenizer", environ=other.environ)
    assert other.inner == "detokenizer-gateway1"
    assert inner.nats_credentials == str(credentials_file(tmp_path, "detokenizer-gateway1"))


def test_on_a_server_of_the_user_both_are_who_the_settings_say(tmp_path: Path) -> None:
    options = parse_options(["--nats-url", "nats://h:1"], OWN)
    spec = next(spec for spec in planned(options, OWN) if spec.role == "gateway")
    assert "PENSTOCK_DETOKENIZER_NATS_CREDENTIALS" not in spec.environ


def test_several_models_have_detokenizers_of_their_own_processes(tmp_path: Path) -> None:
    two = ["--model", f"one={tmp_path}", "--model", f"two={tmp_path}"]
    (problem,) = parse_options(two, OWN).problems
    assert "own_detokenizer is for a stack of one model, and here are 2" in problem
    assert parse_options(two, {}).problems == ()


def test_names_begin_with_the_role_and_say_whose_process_it_is() -> None:
    assert inner_instance("detokenizer", "gateway-0") == "detokenizer-gateway0"
    assert inner_instance("detokenizer", "gateway-7c9f-x2").rpartition("-")[0] == "detokenizer"
