"""compose/k8s is what Kubernetes takes, and says what the services take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml
from prometheus_client import REGISTRY

from services.cli.secrets import CREDENTIALS_NAME, KEY_NAME
from services.launcher.role_settings import config_type
from shared.roles import ROLES
from shared.settings import load_config
from shared.telemetry import metrics

FOLDER = Path(__file__).parents[2] / "compose" / "k8s"
VERSION = "1.34"
"""Of Kubernetes: `sleep` before a stop and all else that is used are in it."""
SERVED = [role for role in ROLES if role != "speculator"]


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def kustomization() -> dict[str, Any]:
    return documents("kustomization.yaml")[0]


RESOURCES: list[str] = kustomization()["resources"]


def container(role: str) -> dict[str, Any]:
    (deployment,) = [one for one in documents(f"{role}.yaml") if one["kind"] == "Deployment"]
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_nothing_is_left_out() -> None:
    others = {"kustomization.yaml", "nats-values.yaml", "autoscaling.yaml"}
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*RESOURCES, *others}
    assert set(SERVED) <= {name.removesuffix(".yaml") for name in RESOURCES}


@pytest.mark.parametrize("name", RESOURCES)
def test_every_resource_is_one_of_the_api(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_wrong_resource_would_be_noticed() -> None:
    document = documents("decode.yaml")[0]
    document["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("role", SERVED)
def test_a_service_is_told_only_what_it_takes(role: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32)
    shared = dict(literal.split("=", 1) for literal in kustomization()["configMapGenerator"][0]["literals"])
    own = {one["name"]: one.get("value", "") for one in container(role)["env"]}
    environ = {**shared, **own, "PENSTOCK_FLEET_KEY_FILE": str(tmp_path / "key")}
    assert load_config(config_type(role), role, environ=environ).metrics_port == 9100
    assert container(role)["args"] == [f"services.{role}"]


@pytest.mark.parametrize("role", SERVED)
def test_each_service_gets_the_secrets_that_are_made_for_it(role: str) -> None:
    made = {one["name"]: one["files"] for one in kustomization()["secretGenerator"]}
    assert made[f"penstock-{role}"] == [f"secrets/{role}/{CREDENTIALS_NAME}", f"secrets/{role}/{KEY_NAME}"]
    (pod,) = [
        one["spec"]["template"]["spec"] for one in documents(f"{role}.yaml") if one["kind"] == "Deployment"
    ]
    (mounted,) = [one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "secrets"]
    assert mounted == f"penstock-{role}"


def test_services_scale_by_metrics_that_there_are() -> None:
    known = {metric.name: metric for metric in REGISTRY.collect()}
    assert metrics.QUEUE_DEPTH
    queries = [
        trigger["metadata"]["query"]
        for one in documents("autoscaling.yaml")
        for trigger in one["spec"]["triggers"]
    ]
    assert queries
    for name in re.findall(r"penstock_\w+", " ".join(queries)):
        assert name in known
