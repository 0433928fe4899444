"""compose/k8s is what Kubernetes takes, and says what the services take."""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.fleet.secrets import CREDENTIALS_NAME, KEY_NAME
from services.cli.planner.plan_options import checked_plan_args
from services.cli.planner.planner_settings import ROLES_PLANNED, read_planner_settings
from services.launcher.role_settings import config_type
from shared.bus.permissions import OPERATOR
from shared.config.fields import COMMON_SETTINGS
from shared.config.settings import load_config
from shared.roles import REQUIRED_ROLES, ROLES
from shared.telemetry.metrics import RoleMetrics
from tests.support.yaml_text import yaml_documents
from tests.unit.test_observability import TARGET_LABELS

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "compose" / "k8s"
VERSION = "1.34"
"""The version of Kubernetes: `sleep` before a stop and all else that is used are in it."""
PAGE = (FOLDER / "README.md").read_text()
COMMAND_TIMEOUT_S = 60
OPTIONAL = {"speculator": "speculator/deployment.yaml"}
"""Role → where it is described, of those that are a component."""
FILES = {role: f"{role}.yaml" for role in ROLES}
FILES |= {role: f"model/{role}.yaml" for role in REQUIRED_ROLES} | OPTIONAL


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Each validation would read 1.5 MB of definitions again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("schema_contents", "all_versions"):
            once = functools.cache(getattr(kubernetes_validate.utils, name))
            patch.setattr(kubernetes_validate.utils, name, once)
        yield


def builder() -> list[str]:
    """The command that builds a kustomization; nothing where there is none."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else []


BUILDER = builder()
needs_kustomize = pytest.mark.skipif(not BUILDER, reason="neither kubectl nor kustomize is installed")


def documents(name: str) -> list[dict[str, Any]]:
    return yaml_documents((FOLDER / name).read_text())


def kustomization() -> dict[str, Any]:
    return documents("kustomization.yaml")[0]


MODEL = documents("model/kustomization.yaml")[0]
RESOURCES: list[str] = [
    *(name for name in kustomization()["resources"] if name != "model"),
    *(f"model/{name}" for name in MODEL["resources"]),
]


def container(role: str) -> dict[str, Any]:
    (deployment,) = [one for one in documents(FILES[role]) if one["kind"] == "Deployment"]
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_nothing_is_left_out() -> None:
    others = {"kustomization.yaml", "nats-values.yaml", "autoscaling.yaml"}
    here = {name for name in RESOURCES if "/" not in name}
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*here, *others}
    assert {path.name for path in (FOLDER / "model").iterdir()} == {*MODEL["resources"], "kustomization.yaml"}
    assert set(FILES.values()) <= {*RESOURCES, *OPTIONAL.values()}


@pytest.mark.parametrize("name", [*RESOURCES, *OPTIONAL.values()])
def test_every_resource_is_one_of_the_api(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_wrong_resource_would_be_noticed() -> None:
    document = documents(FILES["decode"])[0]
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


def pod(role: str) -> dict[str, Any]:
    (deployment,) = [one for one in documents(FILES[role]) if one["kind"] == "Deployment"]
    return dict(deployment["spec"]["template"]["spec"])


@pytest.mark.parametrize("role", ROLES)
def test_no_pod_takes_more_memory_or_scratch_than_it_says(role: str) -> None:
    assert container(role)["resources"]["limits"]["memory"]
    scratch = [volume["emptyDir"] for volume in pod(role)["volumes"] if "emptyDir" in volume]
    assert scratch
    assert all(volume["sizeLimit"] for volume in scratch)


@pytest.mark.parametrize("role", ROLES)
def test_instances_of_a_service_are_spread_over_nodes_and_zones(role: str) -> None:
    (deployment,) = [one for one in documents(FILES[role]) if one["kind"] == "Deployment"]
    spread = pod(role)["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(one["labelSelector"] == deployment["spec"]["selector"] for one in spread)


def test_policies_of_the_network_let_through_what_the_services_need_and_name_ports_that_there_are() -> None:
    services, gateway, nats = documents("network-policy.yaml")
    assert services["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "penstock"}
    for role in ROLES:
        labels = documents(FILES[role])[0]["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "penstock"
    telemetry = services["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in telemetry] == ["telemetry"]
    clients = [port["port"] for port in gateway["spec"]["ingress"][0]["ports"]]
    assert {*clients, "telemetry"} == {port["name"] for port in container("gateway")["ports"]}
    assert nats["spec"]["ingress"][0]["from"] == [{"podSelector": services["spec"]["podSelector"]}]
    open_to = [port["port"] for rule in services["spec"]["egress"] for port in rule["ports"]]
    assert open_to == [53, 53, 4222]


# ---- the examples ----------------------------------------------------------------------------------

NAME = {"type": "string", "minLength": 1}
STRINGS = {"type": "array", "items": NAME, "minItems": 1}
PARENTS = {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["name"]}}
BACKENDS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", "port"],
        "properties": {"name": NAME, "port": {"type": "integer"}},
    },
}


def object_of(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def route_of(**rule: Any) -> dict[str, Any]:
    """Return the schema of a route whose rules may have these fields too."""
    rules = {"type": "array", "items": object_of(["backendRefs"], backendRefs=BACKENDS, **rule)}
    return object_of(["parentRefs", "rules"], parentRefs=PARENTS, hostnames=STRINGS, rules=rules)


SPECS = {
    ("monitoring.coreos.com/v1", "PodMonitor"): object_of(
        ["selector", "podMetricsEndpoints"],
        selector=object_of(["matchLabels"], matchLabels={"type": "object"}),
        podMetricsEndpoints={
            "type": "array",
            "items": object_of(
                ["port"],
                port=NAME,
                path=NAME,
                interval={"type": "string", "pattern": r"^\d+s$"},
                scrapeTimeout={"type": "string", "pattern": r"^\d+s$"},
                relabelings={
                    "type": "array",
                    "items": object_of(
                        ["targetLabel"], targetLabel=NAME, replacement=NAME, sourceLabels=STRINGS
                    ),
                },
            ),
        },
    ),
    ("gateway.networking.k8s.io/v1", "Gateway"): object_of(
        ["gatewayClassName", "listeners"],
        gatewayClassName=NAME,
        listeners={
            "type": "array",
            "items": object_of(
                ["name", "port", "protocol"],
                name=NAME,
                port={"type": "integer"},
                protocol={"enum": ["HTTP", "HTTPS", "TLS"]},
                hostname=NAME,
                tls=object_of(["certificateRefs"], mode={"enum": ["Terminate"]}, certificateRefs=PARENTS),
            ),
        },
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): route_of(
        timeouts=object_of(["request"], request={"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}),
    ),
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): route_of(
        matches={
            "type": "array",
            "items": object_of(["method"], method=object_of(["service"], service=NAME)),
        },
    ),
}
"""What stands in the specs of kinds that Kubernetes itself does not know, as far as we use them."""
EXAMPLES = [
    (path.name, one)
    for path in sorted((FOLDER / "examples").iterdir())
    for one in yaml_documents(path.read_text())
]
BY_KIND = {one["kind"]: one for _, one in EXAMPLES}


@pytest.mark.parametrize(
    ("name", "example"), EXAMPLES, ids=[f"{n} {o['metadata']['name']}" for n, o in EXAMPLES]
)
def test_an_example_is_a_resource_and_named_on_the_page(name: str, example: dict[str, Any]) -> None:
    assert f"examples/{name}" in PAGE
    spec = SPECS.get((example["apiVersion"], example["kind"]))
    if spec is None:
        kubernetes_validate.validate(example, VERSION, strict=True)
    else:
        jsonschema.validate(example["spec"], spec)


def test_a_wrong_example_would_be_noticed() -> None:
    route = {**BY_KIND["HTTPRoute"]["spec"], "parents": []}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(route, SPECS["gateway.networking.k8s.io/v1", "HTTPRoute"])


def test_a_pod_monitor_finds_every_service_under_the_labels_that_queries_use() -> None:
    spec = BY_KIND["PodMonitor"]["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert {one["targetLabel"] for one in endpoint["relabelings"]} == TARGET_LABELS
    (role_label,) = [one for one in endpoint["relabelings"] if one["targetLabel"] == "role"]
    assert role_label["sourceLabels"] == ["__meta_kubernetes_pod_container_name"]
    for role in ROLES:
        assert container(role)["name"] == role
        assert endpoint["port"] in {port["name"] for port in container(role)["ports"]}
        labels = documents(FILES[role])[0]["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_clients_from_outside_are_led_to_ports_of_the_gateways_and_wait_for_long_answers() -> None:
    (service,) = [
        one
        for one in documents("gateway.yaml")
        if one["kind"] == "Service" and one["metadata"]["name"] == "gateway"
    ]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    ingresses = {one["metadata"]["name"]: one for _, one in EXAMPLES if one["kind"] == "Ingress"}
    for edge in ("http", "grpc"):
        ingress = ingresses[f"penstock-{edge}"]
        (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
        assert path["backend"]["service"] == {"name": "gateway", "port": {"name": edge}}
        assert (
            int(ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
        )
        route = BY_KIND[{"http": "HTTPRoute", "grpc": "GRPCRoute"}[edge]]["spec"]
        (rule,) = route["rules"]
        assert rule["backendRefs"] == [{"name": "gateway", "port": ports[edge]}]
    services = {match["method"]["service"] for match in BY_KIND["GRPCRoute"]["spec"]["rules"][0]["matches"]}
    assert services == {pb.DESCRIPTOR.services_by_name["Inference"].full_name, "grpc.health.v1.Health"}


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
        return yaml_documents(self.run(f"{' '.join(BUILDER)} {target}"))


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
def test_the_upgrade_of_the_page_applies_all_but_the_gateways_first_and_never_has_fewer(
    checkout: Checkout,
) -> None:
    """Labels of a resource itself are what `kubectl apply --selector` goes by."""
    block = next(each for each in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "rollout status" in each)
    first, second, last = block.strip().splitlines()
    assert last == "kubectl apply --kustomize compose/k8s"
    assert second.startswith("kubectl --namespace penstock rollout status deployment")
    (selector,) = re.findall(r"--selector '(\S+)'", first)
    label, role = selector.split("!=")
    deployments = of_kind("Deployment", checkout.built(first.split()[3]))
    left_out = {
        name for name, each in deployments.items() if each["metadata"].get("labels", {}).get(label) == role
    }
    assert left_out == {"gateway"}
    for deployment in deployments.values():
        rolling = deployment["spec"]["strategy"].get("rollingUpdate", {})
        assert (rolling.get("maxSurge"), rolling.get("maxUnavailable")) == (1, 0)


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


def with_components(checkout: Checkout, *names: str) -> list[dict[str, Any]]:
    """What is built where the file names these components, each of which it offers."""
    file = checkout.folder / "compose" / "k8s" / "kustomization.yaml"
    text = file.read_text()
    assert all(f"\n# components: [{name}]\n" in text for name in names)
    file.write_text(text.replace("\n# components: [speculator]\n", f"\ncomponents: [{', '.join(names)}]\n"))
    built = checkout.built("compose/k8s")
    for document in built:
        kubernetes_validate.validate(document, VERSION, strict=True)
    return built


def configured(
    deployment: dict[str, Any], role: str, folder: Path, shared: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """The settings of a service that is told what its container is, over what is `shared` by all."""
    (folder / "key").write_text("ab" * 32)
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    environ = {**shared, **{one["name"]: one.get("value", "") for one in found["env"]}}
    environ["PENSTOCK_FLEET_KEY_FILE"] = str(folder / "key")
    return load_config(config_type(role), role, environ=environ)


@needs_kustomize
def test_the_component_of_gpus_gives_each_worker_one(checkout: Checkout, tmp_path: Path) -> None:
    built = of_kind("Deployment", with_components(checkout, "speculator", "gpu"))
    for role in ("prefill", "decode"):
        spec = built[role]["spec"]["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert spec["containers"][0]["resources"]["limits"]["memory"]
        assert [one["key"] for one in spec["tolerations"]] == ["nvidia.com/gpu"]
        assert built[role]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
        assert configured(built[role], role, tmp_path).device == "cuda"
    for role in set(ROLES) - {"prefill", "decode"}:
        assert (
            "nvidia.com/gpu"
            not in built[role]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        )


@needs_kustomize
def test_the_component_of_places_tells_each_instance_those_of_its_node(checkout: Checkout) -> None:
    labels = {"region": "topology.kubernetes.io/region", "zone": "topology.kubernetes.io/zone"}
    for deployment in of_kind("Deployment", with_components(checkout, "speculator", "places")).values():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        told = {one["name"]: one.get("valueFrom") for one in container["env"]}
        for setting, label in labels.items():
            wanted = {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
            assert told[f"PENSTOCK_{setting.upper()}"] == wanted
            assert setting in COMMON_SETTINGS


@needs_kustomize
def test_the_component_of_weights_has_engines_of_a_node_share_one_bounded_folder(
    checkout: Checkout, tmp_path: Path
) -> None:
    built = of_kind("Deployment", with_components(checkout, "speculator", "node-weights"))
    folders = set()
    for role in ("prefill", "decode"):
        spec = built[role]["spec"]["template"]["spec"]
        config = configured(built[role], role, tmp_path)
        (volume,) = [one for one in spec["volumes"] if one["name"] == "weights"]
        (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "weights"]
        assert config.weight_cache_dir == mount["mountPath"]
        assert 0 < config.weight_cache_mb <= 32768
        folders.add(volume["hostPath"]["path"])
        (owner,) = spec["initContainers"]
        assert owner["image"] == spec["containers"][0]["image"]
        assert owner["command"] == ["chown", "10001:10001", mount["mountPath"]]
        assert owner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert spec["securityContext"]["runAsUser"] == 10001
    assert len(folders) == 1


def with_second_model(checkout: Checkout, *components: str) -> list[dict[str, Any]]:
    """What is built where the file's lines for a second model, and of these components, are no comments."""
    file = checkout.folder / "compose" / "k8s" / "kustomization.yaml"
    text = file.read_text()
    named = "PENSTOCK_MODEL_SERVED_NAME=first", "PENSTOCK_GATEWAY_DEFAULT_MODEL=first"
    for line in ("  - second-model", *(f"      - {each}" for each in named)):
        commented = line.replace("- ", "# - ")
        assert f"\n{commented}\n" in text
        text = text.replace(f"\n{commented}\n", f"\n{line}\n")
    file.write_text(text)
    return with_components(checkout, "speculator", *components)


@needs_kustomize
def test_a_second_model_has_deployments_of_its_own_and_clients_choose_by_name(
    checkout: Checkout, tmp_path: Path
) -> None:
    built = with_second_model(checkout)
    deployments = of_kind("Deployment", built)
    assert set(deployments) == {*ROLES, *(f"{role}-second" for role in REQUIRED_ROLES)}
    (shared,) = [one["data"] for one in built if one["kind"] == "ConfigMap"]
    for role in REQUIRED_ROLES:
        for name, model, served in ((role, "target", "first"), (f"{role}-second", "second", "second")):
            config = configured(deployments[name], role, tmp_path, shared)
            assert (config.model, config.served_name) == (f"/models/{model}", served)
    assert configured(deployments["gateway"], "gateway", tmp_path, shared).default_model == "first"


@needs_kustomize
def test_no_selector_of_one_model_finds_a_pod_of_another(checkout: Checkout) -> None:
    """A pod of two budgets could not be evicted, and one of two Deployments is nobody's."""
    built = with_second_model(checkout)
    pods = {
        name: one["spec"]["template"]["metadata"]["labels"]
        for name, one in of_kind("Deployment", built).items()
    }
    for kind in ("Deployment", "PodDisruptionBudget"):
        for name, one in of_kind(kind, built).items():
            wanted = one["spec"]["selector"]["matchLabels"].items()
            assert [found for found, labels in pods.items() if wanted <= labels.items()] == [name]
    for one in of_kind("Deployment", built).values():
        for spread in one["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"] == one["spec"]["selector"]


@needs_kustomize
def test_components_change_the_services_of_a_second_model_too(checkout: Checkout, tmp_path: Path) -> None:
    deployments = of_kind("Deployment", with_second_model(checkout, "tls", "gpu", "node-weights"))
    for role in REQUIRED_ROLES:
        pod = deployments[f"{role}-second"]["spec"]["template"]["spec"]
        assert "tls" in {volume["name"] for volume in pod["volumes"]}
    for role in ("prefill", "decode"):
        config = configured(deployments[f"{role}-second"], role, tmp_path)
        assert (config.device, config.weight_cache_mb) == ("cuda", 32768)


# ---- the planner ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planner_pod() -> dict[str, Any]:
    (found,) = [one for one in documents("planner/deployment.yaml") if one["kind"] == "Deployment"]
    return dict(found["spec"]["template"]["spec"])


def test_the_planner_is_a_component_that_the_api_takes() -> None:
    (component,) = documents("planner/kustomization.yaml")
    assert (component["kind"], component["resources"]) == ("Component", ["deployment.yaml"])
    for document in documents("planner/deployment.yaml"):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_planner_is_told_what_it_takes(planner_pod: dict[str, Any], tmp_path: Path) -> None:
    (container,) = planner_pod["containers"]
    module, command, *options = container["args"]
    args = checked_plan_args(options)
    assert (module, command, args.act) == ("services.cli", "plan", "keda")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"keda": int(args.listen.rpartition(":")[2]), "telemetry": args.metrics[1]}
    (settings,) = [one["data"] for one in documents("planner/deployment.yaml") if one["kind"] == "ConfigMap"]
    (tmp_path / args.settings.name).write_text(settings[args.settings.name])
    assert set(read_planner_settings(tmp_path / args.settings.name).limits) == set(ROLES_PLANNED)


def test_the_planner_is_on_the_bus_as_the_operator(planner_pod: dict[str, Any]) -> None:
    (secrets,) = documents("secrets/kustomization.yaml")
    made = {one["name"]: one["files"] for one in secrets["secretGenerator"]}
    (mounted,) = [one["secret"]["secretName"] for one in planner_pod["volumes"] if one["name"] == "secrets"]
    assert made[mounted] == [f"{OPERATOR}/{CREDENTIALS_NAME}"]


def test_keda_asks_the_planner_for_each_role_that_it_plans() -> None:
    scaled = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"] for one in documents("planner/autoscaling.yaml")
    }
    assert set(scaled) == set(ROLES_PLANNED)
    for role, spec in scaled.items():
        (trigger,) = spec["triggers"]
        assert trigger["type"] == "external-push"
        assert trigger["metadata"] == {"scalerAddress": "planner.penstock:6000", "role": role}
