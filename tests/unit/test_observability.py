"""compose/observability: dashboard and rules name what services show, and alerts fire when they are to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.gateway.scrape_targets import SD_PATH, scrape_targets
from shared.roles import REQUIRED_ROLES
from shared.telemetry.metrics import COMMON, FAMILIES, TTFT_BUCKETS
from tests.integration.gateway_peers import heartbeat
from tests.support.yaml_text import yaml_document
from tests.unit.test_compose import COMPOSE, VARIABLE, described

FOLDER = COMPOSE / "observability"
OVERLAY = "compose.observability.yaml"
PROMTOOL = shutil.which("promtool")
NEEDS_PROMTOOL = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: it comes with Prometheus"
)

TARGET_LABELS = {"job", "instance", "role", "host"}
"""The labels of every series: job and what service discovery says. A metric's own `instance` is
`exported_instance`."""
OTHERS = {
    "up": set[str](),
    "ALERTS": {"alertname", "alertstate"},
    "process_resident_memory_bytes": set[str](),
    "process_cpu_seconds_total": set[str](),
    "process_start_time_seconds": set[str](),
}
"""Series that are not ours, and their labels."""
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
NO_SERIES = re.compile(GROUPING.pattern + r"|\[[^\]]*\]|\b(?:and|or)\b")
SELECTOR = re.compile(r"(?<![\w:])([a-zA-Z_][\w:]*)(?![\w:])(?!\s*\()(?:\{([^}]*)\})?")


def series() -> dict[str, set[str]]:
    """Every name that the services show, with its labels."""
    shown = dict(OTHERS)
    for family in {*COMMON, *(one for families in FAMILIES.values() for one in families)}:
        (metric,) = family.describe()
        labels = {f"exported_{name}" if name in TARGET_LABELS else name for name in family._labelnames}
        match metric.type:
            case "counter":
                shown[f"{metric.name}_total"] = labels
            case "histogram":
                shown[f"{metric.name}_bucket"] = labels | {"le"}
                shown |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
            case _:
                shown[metric.name] = labels
    return shown


def rules() -> list[dict[str, Any]]:
    groups = yaml_document((FOLDER / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = json.loads((FOLDER / "grafana" / "penstock.json").read_text())
    return loaded


def queries() -> Iterator[tuple[str, str]]:
    """Where each stands, and what it is."""
    for rule in rules():
        yield rule.get("record") or rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable
            yield f"${variable['name']}", f"sum by ({found[2]}) ({found[1]})"


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Names of series, and the labels that they are selected by."""
    for name, matchers in SELECTOR.findall(NO_SERIES.sub("", query)):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


QUERIES = dict(queries())
SHOWN = series()


def test_a_query_names_series_and_labels_that_there_are() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for place, query in QUERIES.items():
        found = [(name, labels) for name, labels in selectors(query) if name not in recorded]
        assert {name for name, _ in found} <= set(SHOWN), place
        for name, labels in found:
            assert labels <= SHOWN[name] | TARGET_LABELS, (place, name)
        if found:  # labels of what is recorded are checked where it is recorded
            known = set.union(TARGET_LABELS, *(SHOWN[name] for name, _ in found))
            grouped = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
            assert grouped - {""} <= known, place


def test_every_query_is_seen_to_name_something() -> None:
    assert [place for place, query in QUERIES.items() if not list(selectors(query))] == []


def test_the_targets_for_a_first_token_are_edges_of_its_histogram() -> None:
    edges = {str(edge) for edge in TTFT_BUCKETS}
    (slo,) = [variable for variable in dashboard()["templating"]["list"] if variable["name"] == "slo"]
    chosen = set(slo["query"].split(","))
    chosen |= {le for rule in rules() for le in re.findall(r'\ble="([^"]+)"', rule["expr"])}
    assert chosen <= edges


def test_what_a_fleet_cannot_do_without_is_missed() -> None:
    (missing,) = [rule for rule in rules() if rule.get("alert") == "PenstockRoleMissing"]
    assert set(re.findall(r'role="(\w+)"', missing["expr"])) == {"gateway", *REQUIRED_ROLES}
    (any_of,) = re.findall(r'role=~"([\w|]+)"', missing["expr"])
    assert set(any_of.split("|")) == {"gateway", *REQUIRED_ROLES}


def test_every_alert_says_how_bad_it_is_whose_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["labels"]["owner"] in ("routing", "limits", "indexes", "models", "platform")
        assert set(alert["annotations"]) == {"summary", "action"}


def test_no_two_rules_have_one_name() -> None:
    """One that stands twice would fire twice, with two different things to do."""
    names = [rule.get("record") or rule["alert"] for rule in rules()]
    assert sorted(names) == sorted(set(names))


def test_panels_have_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_prometheus_asks_the_gateway_where_its_metrics_are() -> None:
    config = yaml_document((FOLDER / "prometheus.yaml").read_text())
    (scrape,) = config["scrape_configs"]
    port = described()["services"]["gateway"]["environment"]["PENSTOCK_METRICS_PORT"]
    assert [sd["url"] for sd in scrape["http_sd_configs"]] == [f"http://gateway:{port}{SD_PATH}"]
    (group,) = json.loads(
        scrape_targets([heartbeat("decode", "decode-0", metrics="10.0.0.1:9100", host="one")])
    )
    assert {"job", *group["labels"]} == TARGET_LABELS


def test_images_are_pinned_by_version() -> None:
    for service in described(OVERLAY)["services"].values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])


def test_containers_of_the_overlay_are_confined() -> None:
    for name, service in described(OVERLAY)["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_every_file_that_is_mounted_is_there() -> None:
    for service in described(OVERLAY)["services"].values():
        mounted = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith("./")]
        assert mounted
        assert all((COMPOSE / path).is_file() for path in mounted)


def test_grafana_finds_prometheus_where_the_overlay_has_it() -> None:
    (source,) = yaml_document((FOLDER / "grafana" / "datasource.yaml").read_text())["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]  # or it fails
    assert described(OVERLAY)["services"][host]["ports"][0].endswith(f":{port}")


def test_every_variable_of_the_overlay_is_told_of() -> None:
    used = {name for name, _ in VARIABLE.findall((COMPOSE / OVERLAY).read_text())}
    assert used <= set(re.findall(r"`(\w+)`", (COMPOSE / "README.md").read_text()))


def compose(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", "compose", "--file", "compose.yaml", "--file", OVERLAY, *arguments]
    return subprocess.run(command, cwd=COMPOSE, capture_output=True, text=True, check=False, timeout=60)


def test_compose_reads_the_overlay() -> None:
    if shutil.which("docker") is None or compose("version").returncode:
        pytest.skip("there is no docker compose")
    done = compose("config", "--quiet")
    assert done.returncode == 0, done.stderr


# ---- with Prometheus' own tool ---------------------------------------------------------------------


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run(
        [PROMTOOL, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )


@NEEDS_PROMTOOL
def test_prometheus_takes_configuration_and_rules() -> None:
    done = promtool("check", "config", "prometheus.yaml", cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


@NEEDS_PROMTOOL
def test_prometheus_has_nothing_to_say_of_the_rules() -> None:
    done = promtool("check", "rules", "--lint-fatal", "rules.yaml", cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


@NEEDS_PROMTOOL
def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    filled = [
        {"record": "query", "expr": query.replace("$__rate_interval", "1m").replace("$slo", "1.0")}
        for query in QUERIES.values()
    ]
    groups = [{"name": str(index), "rules": [rule]} for index, rule in enumerate(filled)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": groups}))
    done = promtool("check", "rules", "queries.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


UP = {
    role: f'up{{job="penstock", role="{role}", instance="{role}-0"}}' for role in ("gateway", *REQUIRED_ROLES)
}
REQUESTS = "penstock_requests_total{{job='penstock', outcome='{}'}}"

FIRING: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "an instance that is silent": (
        "PenstockInstanceDown",
        {'up{job="penstock", role="decode", instance="decode-1"}': "1x59 0x60"},
        {"role": "decode", "instance": "decode-1"},
    ),
    "a role that is gone": ("PenstockRoleMissing", {UP["decode"]: "1x10 stale"}, {"role": "decode"}),
    "a role that is down": ("PenstockRoleMissing", {UP["prefill"]: "1x10 0x200"}, {"role": "prefill"}),
    "one of ten is shed": (
        "PenstockShedding",
        {REQUESTS.format("finished"): "0+9x200", REQUESTS.format("shed"): "0+1x200"},
        {"outcome": "shed"},
    ),
    "first tokens come late": (
        "PenstockGoodputLow",
        {
            REQUESTS.format("finished"): "0+10x200",
            'penstock_time_to_first_token_seconds_bucket{job="penstock", le="1.0"}': "0+9x200",
        },
        {},
    ),
    "a full KV pool": (
        "PenstockKvPoolFull",
        {
            'penstock_kv_blocks{job="penstock", role="decode", instance="decode-0", state="held"}': "99x200",
            'penstock_kv_blocks{job="penstock", role="decode", instance="decode-0", state="free"}': "1x200",
        },
        {"role": "decode", "instance": "decode-0"},
    ),
    "one of ten is answered without passages": (
        "PenstockRetrievalLate",
        {
            'penstock_degraded_requests_total{job="penstock", what="retrieval"}': "0+1x200",
            'penstock_hop_seconds_count{job="penstock", role="gateway", phase="retrieve"}': "0+10x200",
        },
        {},
    ),
    "nobody says whether there are earlier answers": (
        "PenstockEarlierAnswersSilent",
        {
            'penstock_response_cache_asks_total{job="penstock", result="none"}': "0+3x200",
            'penstock_response_cache_asks_total{job="penstock", result="miss"}': "0+7x200",
        },
        {},
    ),
    "a corpus that cannot be indexed": (
        "PenstockCorpusTroubled",
        {'penstock_corpus_troubled{job="penstock", instance="retriever-0", corpus="news"}': "1x200"},
        {"instance": "retriever-0", "corpus": "news"},
    ),
    "a collector that does not answer": (
        "PenstockSpansLost",
        {'penstock_traced_requests_total{job="penstock", instance="gateway-0", result="refused"}': "0+1x200"},
        {"instance": "gateway-0"},
    ),
}
"""The alert, what is out of the ordinary every 5 s, and the labels that name the trouble."""


def fired(values: Mapping[str, str], alerts: Sequence[str], folder: Path) -> list[str]:
    """The labels of what fires of `alerts` in the end, in a fleet that is up but for what `values` say."""
    stated = {**dict.fromkeys(UP.values(), "1x200"), **values}
    case = {
        "interval": "5s",
        "input_series": [{"series": name, "values": text} for name, text in stated.items()],
        "alert_rule_test": [{"eval_time": "12m", "alertname": name, "exp_alerts": []} for name in alerts],
    }
    rule_files = [str(FOLDER / "rules.yaml")]
    cases = {"rule_files": rule_files, "evaluation_interval": "5s", "tests": [case]}
    (folder / "cases.yaml").write_text(yaml.safe_dump(cases))
    done = promtool("test", "rules", "cases.yaml", cwd=folder)
    found = re.findall(r"got:\[[\s\S]*?Labels:\{([^}]*)\}", done.stdout + done.stderr)
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    return found


@pytest.mark.thorough(but="a full KV pool | a role that is down | first tokens come late")
@NEEDS_PROMTOOL
@pytest.mark.parametrize("trouble", FIRING)
def test_an_alert_fires_and_names_the_trouble(trouble: str, tmp_path: Path) -> None:
    alert, values, labels = FIRING[trouble]
    (found,) = fired(values, [alert], tmp_path)
    for name, value in {"alertname": alert, **labels}.items():
        assert f'{name}="{value}"' in found


@NEEDS_PROMTOOL
def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    well = {
        REQUESTS.format("finished"): "0+10x200",
        'penstock_time_to_first_token_seconds_bucket{job="penstock", le="1.0"}': "0+10x200",
    }
    assert fired(well, [rule["alert"] for rule in rules() if "alert" in rule], tmp_path) == []
