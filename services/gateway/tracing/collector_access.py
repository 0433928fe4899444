"""Read how the collector of spans is reached: its address, credentials, and who may sign its certificate.

What the configuration leaves open is read from OpenTelemetry's own variables. Credentials are in no message
and in no log.
"""

from __future__ import annotations

import re
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.gateway.config import GatewayConfig
from shared.config.fields import ConfigError
from shared.telemetry.trace_sampler import DEFAULT_SAMPLER, SAMPLERS, TraceSampler

TRACES_PATH = "/v1/traces"
MAX_COLLECTOR_HEADERS = 32
"""The most headers for a collector."""
MAX_COLLECTOR_HEADERS_CHARS = 8192
"""The longest text of all of them: servers take no more."""
HEADERS_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
CERTIFICATE_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
SAMPLER_VARIABLE, SAMPLER_ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_OURS = frozenset({"content-type", "content-length", "transfer-encoding", "host", "connection"})
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


@dataclass(frozen=True, slots=True)
class CollectorAccess:
    """`host` and `path` are where spans go; `headers` may have credentials, and are shown nowhere. `tls` is
    None for plain HTTP."""

    host: str
    port: int | None
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, config: GatewayConfig, environ: Mapping[str, str]) -> CollectorAccess | None:
        """Return what the configuration says, None where spans go nowhere. Raises ConfigError for headers,
        a certificate or an address that cannot be used."""
        if not config.otlp_endpoint:
            return None
        url = urllib.parse.urlsplit(config.otlp_endpoint.rstrip("/") + TRACES_PATH)
        if "@" in url.netloc:
            raise ConfigError("otlp_endpoint has credentials in it: send them as otlp_headers")
        source, text = _first(environ, "otlp_headers", config.otlp_headers, HEADERS_VARIABLES)
        headers = read_headers(text, source)
        source, file = _first(environ, "otlp_certificate", config.otlp_certificate, CERTIFICATE_VARIABLES)
        secure = url.scheme == "https"
        try:
            port = url.port
        except ValueError as error:
            raise ConfigError(f"otlp_endpoint has no port that can be: {error}") from error
        return cls(url.hostname or "", port, url.path, headers, _tls(file, source) if secure else None)

    @property
    def shown(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


def read_headers(text: str, source: str) -> Mapping[str, str]:
    """Return headers written as `name=value,name=value`, values percent-encoded. Raises ConfigError that
    names `source` and the place of what is wrong, and no value."""
    if len(text) > MAX_COLLECTOR_HEADERS_CHARS:
        raise ConfigError(f"{source} has {len(text)} characters: send at most {MAX_COLLECTOR_HEADERS_CHARS}")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_COLLECTOR_HEADERS:
        raise ConfigError(f"{source} has {len(parts)} headers: send at most {MAX_COLLECTOR_HEADERS}")
    headers = {}
    for number, part in enumerate(parts, start=1):
        name, mark, value = (each.strip() for each in part.partition("="))
        value = urllib.parse.unquote(value)  # what is no UTF-8 becomes a character that no header has
        if not mark or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ConfigError(f"{source}: header {number} is none; write name=value,name=value")
        if name.lower() in _OURS:
            raise ConfigError(
                f"{source}: header {number}, {name.lower()}, is set by the gateway: leave it out"
            )
        headers[name.lower()] = value
    return headers


def read_sampler(config: GatewayConfig, environ: Mapping[str, str]) -> TraceSampler:
    """Return what the configuration says, else OpenTelemetry's variables, else to sample all that the
    caller does not leave out. Raises ConfigError for a sampler that is none."""
    if config.trace_sampler:
        return TraceSampler(config.trace_sampler, config.trace_sample_ratio)
    kind = environ.get(SAMPLER_VARIABLE, "").strip() if config.otlp_endpoint else ""
    if not kind:
        return TraceSampler(DEFAULT_SAMPLER)
    if kind not in SAMPLERS:
        allowed = ", ".join(SAMPLERS)
        raise ConfigError(
            f"{SAMPLER_VARIABLE} is {kind[:80]!r}; it must be one of {allowed}, or set trace_sampler, which "
            "comes first"
        )
    text = environ.get(SAMPLER_ARGUMENT, "").strip() or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(f"{SAMPLER_ARGUMENT} is {text[:80]!r}; it must be a number from 0 to 1")
    return TraceSampler(kind, ratio)


def _first(
    environ: Mapping[str, str], setting: str, value: str, variables: tuple[str, ...]
) -> tuple[str, str]:
    """Return who says it and what: the setting, else the first variable that says something."""
    told = [(setting, value), *((name, environ.get(name, "").strip()) for name in variables)]
    return next((each for each in told if each[1]), (setting, ""))


def _tls(file: str, source: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{source} {file} has no certificates that can be read: {error}") from error
