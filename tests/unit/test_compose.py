"""compose/compose.yaml says what the services take, and gives nobody another's secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.cli.fleet.secrets import FOLDERS, build_secrets_parser
from services.cli.fleet.stack_roll import ROLL_ORDER
from services.gateway.config import GatewayConfig
from services.gateway.connection_places import fit_connections
from services.launcher.role_settings import config_type
from shared.bus.addresses import server_urls
from shared.config.settings import load_config
from shared.roles import REQUIRED_ROLES, ROLES
from tests.support.yaml_text import yaml_document

COMPOSE = Path(__file__).parents[2] / "compose"
PAGE = (COMPOSE / "README.md").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")


def described(name: str = "compose.yaml") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml_document((COMPOSE / name).read_text())
    return loaded


def environment(service: str, name: str = "compose.yaml", **said: str) -> dict[str, str]:
    """What the container of a service is told when the user sets nothing but what is `said`."""
    stated = described(name)["services"][service]["environment"]
    return {
        name: VARIABLE.sub(lambda found: said.get(found[1]) or found[2] or "", value)
        for name, value in stated.items()
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_service_is_told_only_what_it_takes(role: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32)
    environ = environment(role) | {"PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    config = load_config(config_type(role), role, environ=environ)
    assert config.metrics_host == "0.0.0.0"
    assert config.fleet_key


@pytest.mark.parametrize("second", ["", "-second"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_on_gpus_the_engines_are_told_to_compute_there(role: str, second: str) -> None:
    environ = environment(f"{role}{second}", "compose.gpu.yaml")
    assert described("compose.gpu.yaml")["services"][f"{role}{second}"]["deploy"]["resources"]
    assert load_config(config_type(role), role, environ=environ).device == "cuda"  # type: ignore[attr-defined]  # every engine's has it


@pytest.mark.parametrize("role", ROLES)
def test_a_service_runs_itself_and_sees_its_own_secrets_alone(role: str) -> None:
    service = described()["services"][role]
    assert service["command"] == [f"services.{role}"]
    secrets = [volume for volume in service["volumes"] if volume.startswith("secrets-")]
    assert secrets == [f"secrets-{role}:/run/penstock:ro"]


@pytest.mark.parametrize("role", REQUIRED_ROLES)
def test_a_second_model_has_services_of_its_own_that_are_like_those_of_the_first(
    role: str, tmp_path: Path
) -> None:
    services = described()["services"]
    first, second = services[role], services[f"{role}-second"]
    assert second == first | {"profiles": ["second-model"], "environment": second["environment"]}
    assert set(second["environment"]) == set(first["environment"])
    (tmp_path / "key").write_text("ab" * 32)
    said = {
        "PENSTOCK_MODEL": "/models/a",
        "PENSTOCK_MODEL_NAME": "large",
        "PENSTOCK_SECOND_MODEL": "/models/b",
        "PENSTOCK_SECOND_NAME": "small",
    }
    for service, model, name in ((role, "/models/a", "large"), (f"{role}-second", "/models/b", "small")):
        environ = environment(service, **said) | {"PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
        config = load_config(config_type(role), role, environ=environ)
        assert (config.model, config.served_name) == (model, name)


def test_who_names_no_model_gets_the_first_and_drafts_are_of_it_where_it_has_a_name() -> None:
    for name in ("", "large"):
        gateway = environment("gateway", PENSTOCK_MODEL_NAME=name)
        assert gateway["PENSTOCK_GATEWAY_DEFAULT_MODEL"] == name
        assert environment("speculator", PENSTOCK_MODEL_NAME=name)["PENSTOCK_SPECULATOR_DRAFTS_FOR"] == name


BALANCER = (COMPOSE / "balancer" / "haproxy.cfg").read_text()


def test_the_balancer_leads_to_both_edges_of_all_gateways_which_publish_nothing_themselves(
    tmp_path: Path,
) -> None:
    """Then several of them have room on one host."""
    (tmp_path / "key").write_text("ab" * 32)
    environ = environment("gateway") | {"PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    config = load_config(config_type("gateway"), "gateway", environ=environ)
    services = described()["services"]
    assert "ports" not in services["gateway"]
    published = [int(str(port).rpartition(":")[2]) for port in services["balancer"]["ports"]]
    edges = [(config.grpc_host, config.grpc_port), (config.http_host, config.http_port)]  # type: ignore[attr-defined]  # a gateway's has them
    assert edges == [("0.0.0.0", port) for port in published]
    assert [int(port) for port in re.findall(r"^ +bind :(\d+)$", BALANCER, re.MULTILINE)] == published
    led = re.findall(r"server-template gateway (\d+) gateway:(\d+)$", BALANCER, re.MULTILINE)
    assert [int(port) for _, port in led] == published
    assert {int(most) for most, _ in led} == {16}
    (checked,) = re.findall(r"check port (\d+)", BALANCER)
    assert int(checked) == config.metrics_port
    assert "option httpchk GET /ready" in BALANCER


def test_a_balancer_is_well_while_its_gateways_are_replaced() -> None:
    """`up --wait` would end with an error else: for as long as one may take to stop and another to start."""
    services = described()["services"]
    checked = services["balancer"]["healthcheck"]
    patience_s = checked["retries"] * int(checked["interval"].removesuffix("s"))
    assert patience_s >= 3 * int(described()["x-service"]["stop_grace_period"].removesuffix("s"))


def test_the_balancer_says_that_it_is_well_where_its_health_is_asked() -> None:
    service = described()["services"]["balancer"]
    (address,) = re.findall(r"^ +bind (127\.0\.0\.1:\d+)$", BALANCER, re.MULTILINE)
    (path,) = re.findall(r"monitor-uri (\S+)", BALANCER)
    assert service["healthcheck"]["test"][-1] == f"http://{address}{path}"
    (mounted,) = service["volumes"]
    assert (COMPOSE / mounted.split(":")[0]).is_file()


def test_services_wait_until_the_bus_answers() -> None:
    services = described()["services"]
    assert "4222" in services["nats"]["healthcheck"]["test"][-1]
    for role in ROLES:
        assert services[role]["depends_on"]["nats"] == {"condition": "service_healthy"}


def test_the_image_is_for_cpus_and_builds_nothing_where_services_run() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    assert "\nARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in dockerfile
    build = described()["services"]["secrets"]["build"]
    assert VARIABLE.sub(lambda found: found[2] or "", build["args"]["TORCH_INDEX"]).endswith("/cpu")
    on_gpus = described("compose.gpu.yaml")["services"]["secrets"]["build"]
    assert VARIABLE.sub(lambda found: found[2] or "", on_gpus["args"]["TORCH_INDEX"]) == ""
    *_, built, final = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)
    assert "g++" in built
    assert "pip uninstall --yes" in built
    installed = re.findall(r"^.*apt-get install.*$", final, re.MULTILINE)
    assert len(installed) == 1
    assert 'if [ "$EXTRA" = gpu ]' in final


@pytest.mark.parametrize("role", ["prefill", "decode", "speculator"])
def test_engines_follow_the_file_of_adapters_that_the_operator_writes(role: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32)
    environ = environment(role) | {"PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    config = load_config(config_type(role), role, environ=environ)
    services = described()["services"]
    assert config.adapter_file == services["cli"]["environment"]["PENSTOCK_MODEL_ADAPTER_FILE"]  # type: ignore[attr-defined]  # every engine's has it
    folder = str(Path(config.adapter_file).parent)  # type: ignore[attr-defined]  # the same
    assert f"adapters:{folder}:ro" in services[role]["volumes"]
    assert f"adapters:{folder}" in services["cli"]["volumes"]
    assert f" {folder} " in (COMPOSE / "Dockerfile").read_text()


def test_every_container_is_confined() -> None:
    for name, service in described()["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_a_gateway_may_open_as_many_files_as_it_takes_connections() -> None:
    limits = described()["services"]["gateway"]["ulimits"]["nofile"]
    config = GatewayConfig(http_host="0.0.0.0")
    assert fit_connections(config, limits["soft"]) is config
    (unit,) = (COMPOSE / "systemd").iterdir()
    (limit,) = re.findall(r"^LimitNOFILE=(\d+)$", unit.read_text(), re.MULTILINE)
    assert fit_connections(config, int(limit)) is config


def test_the_one_who_makes_the_secrets_writes_each_into_a_volume_of_its_own() -> None:
    volumes = described()["services"]["secrets"]["volumes"]
    assert volumes == [f"secrets-{name}:/secrets/{name}" for name in FOLDERS]
    assert all(f" {name} " in (COMPOSE / "Dockerfile").read_text().replace(";", " ") for name in FOLDERS)


def test_on_an_encrypted_bus_everybody_finds_the_certificate_that_the_credentials_name() -> None:
    """And nobody but the server its key."""
    over = described("compose.tls.yaml")["services"]
    *_, option, named = over["secrets"]["command"]
    assert build_secrets_parser().parse_args(over["secrets"]["command"][2:]).tls_ca == named
    assert option == "--tls-ca"
    for name in (*ROLES, *(f"{role}-second" for role in REQUIRED_ROLES), "cli"):
        assert over[name] == {"volumes": [f"${{PENSTOCK_TLS:-./tls}}/ca.crt:{named}:ro"]}
    before, command = described()["services"]["nats"]["command"], over["nats"]["command"]
    assert command[: len(before)] == before
    (folder,) = over["nats"]["volumes"]
    served = folder.rsplit(":", 2)[1]
    flags = command[len(before) :]
    assert flags == ["--tls", "--tlscert", f"{served}/tls.crt", "--tlskey", f"{served}/tls.key"]


def test_a_bus_of_three_servers_is_what_everybody_is_told_of() -> None:
    """All three are as the one of the plain stack, and read the same configuration, which names them."""
    over, plain = described("compose.nats.yaml")["services"], described()["services"]["nats"]
    named = ["nats", *(name for name in over if name.startswith("nats"))]
    assert over["nats-2"] == over["nats-3"] == plain
    options = build_secrets_parser().parse_args(over["secrets"]["command"][2:])
    assert options.nats_servers.split(",") == named
    for name in (*ROLES, *(f"{role}-second" for role in REQUIRED_ROLES), "cli"):
        assert server_urls(over[name]["environment"]["PENSTOCK_NATS_URL"]) == [
            f"nats://{server}:4222" for server in named
        ]


def test_every_variable_is_told_of() -> None:
    names = ("compose.yaml", "compose.tls.yaml", "compose.nats.yaml")
    files = [(COMPOSE / name).read_text() for name in names]
    used = {name for text in files for name, _ in VARIABLE.findall(text)}
    told = set(re.findall(r"`(\w+)`", (COMPOSE / "README.md").read_text()))
    assert used <= told


def test_torch_is_the_version_that_make_installs() -> None:
    (version,) = re.findall(r"^TORCH := (\S+)$", (COMPOSE.parent / "Makefile").read_text(), re.MULTILINE)
    assert version in (COMPOSE / "Dockerfile").read_text()


# ---- the upgrade that its page describes ----

DOCKER = '''#!{python}
"""Plays docker: containers are files of a folder, and what is done with them is noted."""
import json, os, pathlib, sys

folder, argv = pathlib.Path(os.environ["PLAYED"]), sys.argv[1:]

def of(role):
    return sorted(path.name for path in folder.glob(f"{{role}}.*"))

def note(what):
    with (folder / "noted").open("a") as notes:
        counts = {{role: len(of(role)) for role in json.loads((folder / "roles").read_text())}}
        notes.write(json.dumps([what, counts]) + "\\n")

match argv:
    case ["compose", "-f", "compose/compose.yaml", "build"]:
        note("build")
    case ["compose", "-f", "compose/compose.yaml", "ps", "--quiet", role]:
        print("\\n".join(of(role)))
    case ["compose", "-f", "compose/compose.yaml", "up", *_, "--no-recreate", "--scale", scale, role]:
        assert scale.startswith(role + "="), scale
        for number in range(len(of(role)), int(scale.partition("=")[2])):
            (folder / f"{{role}}.new{{number}}").touch()
        note("up " + role)
    case ["stop", *names]:
        note("stop " + " ".join(names))
    case ["rm", *names]:
        for name in names:
            (folder / name).unlink()
        note("rm")
    case _:
        sys.exit(f"docker is not told so on the page: {{argv}}")
'''


def upgrade_steps() -> str:
    """The commands of the page that replace role by role."""
    (block,) = (each for each in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "for role in" in each)
    return str(block)


def test_the_upgrade_of_the_page_replaces_every_container_and_there_are_never_fewer(tmp_path: Path) -> None:
    played, before = tmp_path / "played", {"retriever": 1, "gateway": 2}
    roles = upgrade_steps().partition("for role in ")[2].partition(";")[0].split()
    counts = {role: before.get(role, 3) for role in roles}
    played.mkdir()
    (played / "roles").write_text(json.dumps(roles))
    for role, count in counts.items():
        for number in range(count):
            (played / f"{role}.old{number}").touch()
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(python=sys.executable))
    docker.chmod(0o755)
    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PLAYED": str(played)}
    subprocess.run(["bash", "-euc", upgrade_steps()], env=environ, check=True, timeout=60)
    left = [path.name for path in played.iterdir() if "." in path.name]
    assert {role: sum(name.startswith(role) for name in left) for role in roles} == counts
    assert not [name for name in left if ".old" in name]
    notes = [json.loads(line) for line in (played / "noted").read_text().splitlines()]
    assert [what for what, _ in notes if what.startswith("up")] == [f"up {role}" for role in roles]
    assert all(now[role] >= count for _, now in notes for role, count in counts.items())


def test_the_upgrade_names_every_service_that_always_runs_who_is_asked_first() -> None:
    roles = upgrade_steps().partition("for role in ")[2].partition(";")[0].split()
    always = {name for name, service in described()["services"].items() if "profiles" not in service}
    assert set(roles) == always & set(ROLES)
    assert roles == [role for role in ROLL_ORDER if role in roles]
