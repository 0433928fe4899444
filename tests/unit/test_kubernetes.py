"""compose/k8s is what Kubernetes takes, and says what the services take."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml

from services.cli.fleet.secrets import CREDENTIALS_NAME, KEY_NAME
from services.launcher.role_settings import config_type
from shared.config.settings import load_config
from shared.roles import ROLES
from shared.telemetry.metrics import RoleMetrics

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "compose" / "k8s"
VERSION = "1.34"
"""The version of Kubernetes: `sleep` before a stop and all else that is used are in it."""
PAGE = (FOLDER / "README.md").read_text()
COMMAND_TIMEOUT_S = 60
OPTIONAL = {"speculator": "speculator/deployment.yaml"}
"""Role → where it is described, of those that are a component."""
FILES = {role: OPTIONAL.get(role, f"{role}.yaml") for role in ROLES}


def builder() -> list[str]:
    """The command that builds a kustomization; nothing where there is none."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else []


BUILDER = builder()
needs_kustomize = pytest.mark.skipif(not BUILDER, reason="neither kubectl nor kustomize is installed")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def kustomization() -> dict[str, Any]:
    return documents("kustomization.yaml")[0]


RESOURCES: list[str] = kustomization()["resources"]


def container(role: str) -> dict[str, Any]:
    (deployment,) = [one for one in documents(FILES[role]) if one["kind"] == "Deployment"]
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_nothing_is_left_out() -> None:
    others = {"kustomization.yaml", "nats-values.yaml", "autoscaling.yaml"}
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*RESOURCES, *others}
    assert set(FILES.values()) <= {*RESOURCES, *OPTIONAL.values()}


@pytest.mark.parametrize("name", [*RESOURCES, *OPTIONAL.values()])
def test_every_resource_is_one_of_the_api(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_wrong_resource_would_be_noticed() -> None:
    document = documents("decode.yaml")[0]
    document["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("role", ROLES)
def test_a_service_is_told_only_what_it_takes(role: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32)
    shared = dict(literal.split("=", 1) for literal in kustomization()["configMapGenerator"][0]["literals"])
    own = {one["name"]: one.get("value", "") for one in container(role)["env"]}
    environ = {**shared, **own, "PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    assert load_config(config_type(role), role, environ=environ).metrics_port == 9100
    assert container(role)["args"] == [f"services.{role}"]


@pytest.mark.parametrize("role", ROLES)
def test_each_service_gets_the_secrets_that_are_made_for_it(role: str) -> None:
    (secrets,) = documents("secrets/kustomization.yaml")
    made = {one["name"]: one["files"] for one in secrets["secretGenerator"]}
    assert made[f"penstock-{role}"] == [f"{role}/{CREDENTIALS_NAME}", f"{role}/{KEY_NAME}"]
    (pod,) = [
        one["spec"]["template"]["spec"] for one in documents(FILES[role]) if one["kind"] == "Deployment"
    ]
    (mounted,) = [one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "secrets"]
    assert mounted == f"penstock-{role}"


def shown(role: str) -> set[str]:
    """The names under which Prometheus finds what a service shows."""
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in RoleMetrics(role).collect()
    }


@pytest.mark.parametrize("scaled", documents("autoscaling.yaml"), ids=lambda one: one["metadata"]["name"])
def test_a_service_scales_by_a_metric_that_it_shows(scaled: dict[str, Any]) -> None:
    queries = " ".join(trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])
    named = set(re.findall(r"penstock_\w+", queries))
    assert named
    assert named <= shown(scaled["spec"]["scaleTargetRef"]["name"])


def test_the_page_scales_services_by_metrics_that_they_show() -> None:
    rows = re.findall(r"^\| (\w+) \| (.*) \|.*\|$", PAGE, re.MULTILINE)
    table = {role: how for role, how in rows if role in ROLES}
    assert set(table) == set(ROLES)
    for role, how in table.items():
        for name, whose in re.findall(r"`(penstock_\w+)[^`]*`(?: of (?:the )?(gateway|decode))?", how):
            assert name in shown(whose or role)


# ---- what comes out of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the folder, in which commands run as they stand on the page."""

    folder: Path

    def run(self, command: str) -> str:
        scripts = str(Path(sys.executable).parent)
        environ = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=environ, capture_output=True, text=True, check=False,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def built(self, target: str) -> list[dict[str, Any]]:
        return list(yaml.safe_load_all(self.run(f"{' '.join(BUILDER)} {target}")))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = [path.name for path in (FOLDER / "secrets").iterdir() if path.is_dir()]
    shutil.copytree(
        FOLDER, tmp_path / "compose" / "k8s", ignore=shutil.ignore_patterns(*made) if made else None
    )
    return Checkout(tmp_path)


def steps() -> list[str]:
    """The page's first commands, in order."""
    block = PAGE.split("```sh\n", 1)[1].split("```", 1)[0]
    return [line.split("#")[0].strip() for line in block.splitlines() if line.strip()]


def of_kind(kind: str, built: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in built if one["kind"] == kind}


@needs_kustomize
def test_it_builds_as_it_is(checkout: Checkout) -> None:
    built = checkout.built("compose/k8s")
    assert set(of_kind("Deployment", built)) == set(ROLES) - set(OPTIONAL)
    for document in built:
        kubernetes_validate.validate(document, VERSION, strict=True)
        assert document["metadata"]["namespace"] == "penstock"


@needs_kustomize
def test_the_steps_of_the_page_are_right(checkout: Checkout) -> None:
    built: list[dict[str, Any]] = []
    for step in steps():
        if step.startswith("penstock "):
            checkout.run(step)
        elif step.startswith("kubectl apply --kustomize "):
            built += checkout.built(step.removeprefix("kubectl apply --kustomize "))
        else:
            assert step.startswith(("kubectl create namespace penstock", "helm upgrade", "kubectl apply"))
        for file in re.findall(r"\S+\.yaml", step):
            assert (checkout.folder / file).is_file()
    for document in built:
        kubernetes_validate.validate(document, VERSION, strict=True)
    secrets = of_kind("Secret", built)
    assert "authorization" in base64.b64decode(secrets["penstock-nats"]["data"]["nats.conf"]).decode()
    for name, deployment in of_kind("Deployment", built).items():
        (mounted,) = [
            volume["secret"]["secretName"]
            for volume in deployment["spec"]["template"]["spec"]["volumes"]
            if volume["name"] == "secrets"
        ]
        assert set(secrets[mounted]["data"]) == {CREDENTIALS_NAME, KEY_NAME}
        assert f'user = "{name}"' in base64.b64decode(secrets[mounted]["data"][CREDENTIALS_NAME]).decode()


@needs_kustomize
def test_the_component_that_the_file_offers_adds_the_speculator(checkout: Checkout) -> None:
    file = checkout.folder / "compose" / "k8s" / "kustomization.yaml"
    text = file.read_text()
    assert "\n# components: [speculator]\n" in text
    file.write_text(text.replace("# components: [speculator]", "components: [speculator]"))
    built = checkout.built("compose/k8s")
    assert set(of_kind("Deployment", built)) == set(ROLES)
    for document in built:
        kubernetes_validate.validate(document, VERSION, strict=True)
    (image,) = {
        container["image"]
        for deployment in of_kind("Deployment", built).values()
        for container in deployment["spec"]["template"]["spec"]["containers"]
    }
    assert image == "penstock:latest"


@needs_kustomize
def test_the_component_of_an_encrypted_bus_gives_every_pod_the_certificate_and_no_key(
    checkout: Checkout,
) -> None:
    file = checkout.folder / "compose" / "k8s" / "kustomization.yaml"
    text = file.read_text()
    assert "\n# components: [tls]\n" in text
    file.write_text(text.replace("# components: [tls]", "components: [speculator, tls]"))
    built = of_kind("Deployment", checkout.built("compose/k8s"))
    assert set(built) == set(ROLES)
    (made,) = re.findall(r"penstock secrets new .* --tls-ca (\S+)", PAGE)
    for deployment in built.values():
        kubernetes_validate.validate(deployment, VERSION, strict=True)
        pod = deployment["spec"]["template"]["spec"]
        (volume,) = [one for one in pod["volumes"] if one["name"] == "tls"]
        (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "tls"]
        assert volume["secret"]["secretName"] == "penstock-nats-tls"
        assert [f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]] == [made]
    values = documents("tls/nats-values.yaml")[0]
    named = [values["tlsCA"], values["config"]["nats"]["tls"], values["config"]["cluster"]["tls"]]
    assert all(one["enabled"] and one["secretName"] == "penstock-nats-tls" for one in named)


@needs_kustomize
def test_one_address_leads_to_all_gateways_and_one_name_to_each(checkout: Checkout) -> None:
    services = of_kind("Service", checkout.built("compose/k8s"))
    assert services["gateway"]["spec"].get("clusterIP") is None
    assert services["gateways"]["spec"]["clusterIP"] == "None"
    ports = {port["name"]: port["port"] for port in services["gateway"]["spec"]["ports"]}
    assert ports == {"grpc": 50051, "http": 8000, "telemetry": 9100}
    (container_ports,) = [
        {port["name"]: port["containerPort"] for port in container("gateway")["ports"]},
    ]
    assert container_ports == ports
