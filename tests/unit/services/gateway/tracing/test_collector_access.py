"""A collector gets its credentials, is known by its certificate, and no secret is told to anybody else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.gateway.config import GatewayConfig
from services.gateway.tracing import span_exporter
from services.gateway.tracing.collector_access import (
    MAX_COLLECTOR_HEADERS,
    MAX_COLLECTOR_HEADERS_CHARS,
    CollectorAccess,
    read_headers,
    read_sampler,
)
from services.gateway.tracing.span_exporter import SpanExporter
from shared.config.config_file import ConfigFile
from shared.config.fields import ConfigError
from shared.config.settings import load_config
from shared.telemetry.trace_sampler import TraceSampler
from tests.support.certificate import make_certificate
from tests.support.collector import collector
from tests.support.metric import value
from tests.support.records import make_record
from tests.support.wait import until

SECRET = "s3cr3t-of-the-collector"
TRACED = "penstock_traced_requests_total"


def access(environ: Mapping[str, str] | None = None, **settings: Any) -> CollectorAccess:
    found = CollectorAccess.of(
        GatewayConfig(**{"otlp_endpoint": "http://127.0.0.1:1", **settings}), environ or {}
    )
    assert found is not None
    return found


async def exported(to: CollectorAccess, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what became of one request's spans."""
    monkeypatch.setattr(span_exporter, "FIRST_WAIT_S", 0.0)
    results = ("sent", "refused", "unreachable")
    before = {result: value(TRACED, result=result) for result in results}
    exporter = SpanExporter(to, "gateway-0")
    exporter.start()
    exporter.add(make_record())
    await until(lambda: any(value(TRACED, result=result) > before[result] for result in results))
    exporter.close()
    (found,) = [result for result in results if value(TRACED, result=result) > before[result]]
    return found


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({}, {"otlp_headers": f"authorization=Bearer%20{SECRET}, x-team=a=b"}),
        ({"OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer {SECRET},x-team=a=b"}, {}),
        (
            {
                "OTEL_EXPORTER_OTLP_HEADERS": "authorization=another",
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"authorization=Bearer%20{SECRET},x-team=a%3Db,",
            },
            {},
        ),
        (
            {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=another"},
            {"otlp_headers": f"authorization=Bearer%20{SECRET},x-team=a=b"},
        ),
    ],
)
async def test_a_collector_gets_the_headers_that_are_configured(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], settings: dict[str, str]
) -> None:
    with collector() as collecting:
        to = access(environ, otlp_endpoint=collecting.address, **settings)
        assert await exported(to, monkeypatch) == "sent"
    (headers,) = collecting.headers
    assert (headers["Authorization"], headers["X-Team"]) == (f"Bearer {SECRET}", "a=b")
    assert headers["Content-Type"] == "application/json"
    assert collecting.broken == []


async def test_no_credentials_are_logged_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GatewayConfig(otlp_endpoint="http://127.0.0.1:1", otlp_headers=f"authorization={SECRET}")
    to = CollectorAccess.of(config, {})
    assert to is not None
    with capture_logs() as logs:
        assert await exported(to, monkeypatch) == "unreachable"
    assert [line["event"] for line in logs] == ["spans_lost"]
    assert SECRET not in f"{logs} {to!r} {config!r}"


@pytest.mark.parametrize(
    "headers",
    [
        SECRET,
        f"a b={SECRET}",
        f"={SECRET}",
        f"x={SECRET}%0d%0aHost: evil",
        f"x={SECRET}%0a",
        f"x={SECRET}%ff",
        f"x={SECRET}\u20ac",
        f"content-type={SECRET}",
        f"ok=1,Host={SECRET}",
        f"x={SECRET * MAX_COLLECTOR_HEADERS_CHARS}",
        ",".join(f"x{number}={SECRET}" for number in range(MAX_COLLECTOR_HEADERS + 1)),
    ],
)
def test_headers_that_cannot_be_are_refused_without_being_shown(headers: str) -> None:
    with pytest.raises(ConfigError, match="otlp_headers") as refused:
        access(otlp_headers=headers)
    assert SECRET not in str(refused.value)


def test_as_many_and_as_long_headers_as_may_be_are_taken() -> None:
    many = ",".join(f"x{number}=v" for number in range(MAX_COLLECTOR_HEADERS))
    assert len(read_headers(many, "here")) == MAX_COLLECTOR_HEADERS
    longest = "x=" + "v" * (MAX_COLLECTOR_HEADERS_CHARS - 2)
    assert len(read_headers(longest, "here")["x"]) == MAX_COLLECTOR_HEADERS_CHARS - 2


def test_the_headers_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text(f"authorization={SECRET}\n")
    environ = {"PENSTOCK_GATEWAY_OTLP_HEADERS_FILE": str(file)}
    config = load_config(GatewayConfig, "gateway", environ=environ, file=ConfigFile())
    assert config.otlp_headers == f"authorization={SECRET}"
    both = {**environ, "PENSTOCK_GATEWAY_OTLP_HEADERS": "a=b"}
    with pytest.raises(ConfigError, match="both set"):
        load_config(GatewayConfig, "gateway", environ=both, file=ConfigFile())
    wrong = {"PENSTOCK_GATEWAY_FLEET_KEY_FILE": str(file), "PENSTOCK_GATEWAY_OTLP_CERTIFICATE_FILE": "x"}
    with pytest.raises(ConfigError, match=r"FLEET_KEY_FILE.*OTLP_CERTIFICATE_FILE"):
        load_config(GatewayConfig, "gateway", environ=wrong, file=ConfigFile())


def test_credentials_in_the_address_are_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="otlp_headers") as refused:
        access(otlp_endpoint=f"http://me:{SECRET}@collector:4318")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("by", ["otlp_certificate", "OTEL_EXPORTER_OTLP_CERTIFICATE"])
async def test_a_collector_is_known_by_the_certificate_that_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    own, others = make_certificate(tmp_path / "own"), make_certificate(tmp_path / "others")
    results = {}
    with collector(own) as collecting:
        for name, file in (("own", own.certificate), ("others", others.certificate)):
            settings = {by: str(file)} if by.islower() else {}
            environ = {} if by.islower() else {by: str(file)}
            to = access(environ, otlp_endpoint=collecting.address, otlp_headers=f"k={SECRET}", **settings)
            results[name] = await exported(to, monkeypatch)
        results["system"] = await exported(access(otlp_endpoint=collecting.address), monkeypatch)
    assert results == {"own": "sent", "others": "unreachable", "system": "unreachable"}
    assert [headers["K"] for headers in collecting.headers] == [SECRET]


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    for file in (tmp_path / "none.pem", tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=f"otlp_certificate {file}"):
            access(otlp_endpoint="https://127.0.0.1:1", otlp_certificate=str(file))


def test_without_an_address_nothing_is_read() -> None:
    environ = {"OTEL_EXPORTER_OTLP_HEADERS": "broken", "OTEL_TRACES_SAMPLER": "xray"}
    assert CollectorAccess.of(GatewayConfig(), environ) is None
    assert read_sampler(GatewayConfig(), environ) == TraceSampler()


@pytest.mark.parametrize(
    ("environ", "settings", "sampler"),
    [
        ({}, {}, TraceSampler("parentbased_always_on", 1.0)),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            {},
            TraceSampler("parentbased_traceidratio", 0.25),
        ),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, {}, TraceSampler("traceidratio", 1.0)),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.25"}, {}, TraceSampler("parentbased_always_on", 1.0)),
        (
            {"OTEL_TRACES_SAMPLER": "always_off"},
            {"trace_sampler": "traceidratio", "trace_sample_ratio": 0.5},
            TraceSampler("traceidratio", 0.5),
        ),
    ],
)
def test_the_sampler_is_that_of_the_configuration_else_of_the_environment(
    environ: dict[str, str], settings: dict[str, Any], sampler: TraceSampler
) -> None:
    config = GatewayConfig(otlp_endpoint="http://127.0.0.1:1", **settings)
    assert read_sampler(config, environ) == sampler


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_SAMPLER": "xray"},
        *(
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}
            for ratio in ("half", "-0.1", "1.1", "nan")
        ),
    ],
)
def test_a_sampler_that_is_none_is_refused_by_the_name_of_its_variable(environ: dict[str, str]) -> None:
    named = list(environ)[-1]
    with pytest.raises(ConfigError, match=f"{named} is '{environ[named]}'"):
        read_sampler(GatewayConfig(otlp_endpoint="http://127.0.0.1:1"), environ)
