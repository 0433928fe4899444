"""The certificate of an edge, from its files, and anew when they change: each new connection looks."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import grpc
import structlog

from services.gateway.config import GatewayConfig
from shared.config.fields import ConfigError
from shared.files.file_signature import FileSignature, file_signature
from shared.telemetry import metrics

log = structlog.get_logger()

HTTP2 = ("h2",)
PROTOCOLS: tuple[tuple[str, ...], ...] = ((), HTTP2)
"""The protocols of our servers, as ALPN names them; none: what clients ask for is not looked at."""


class EdgeCertificate:
    """Raises ConfigError with a sentence when the files make no certificate.

    A renewed certificate counts from the next connection on; while the files make none (one may be written
    before the other), the last good one does.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._files = {
            name: Path(getattr(config, name))
            for name in ("tls_cert", "tls_key", "tls_client_ca")
            if getattr(config, name)
        }
        self._signature = self._signatures()
        self._contexts: dict[tuple[str, ...], ssl.SSLContext]
        self._configuration = self._load()

    @classmethod
    def of(cls, config: GatewayConfig) -> EdgeCertificate | None:
        """Return the certificate that the configuration names, or None for an edge without TLS.

        Raises ConfigError for a part of it alone.
        """
        given = {name: bool(getattr(config, name)) for name in ("tls_cert", "tls_key", "tls_client_ca")}
        if not any(given.values()):
            return None
        for name in ("tls_cert", "tls_key"):
            if not given[name]:
                others = " and ".join(other for other in given if given[other])
                raise ConfigError(
                    f"{others} of the gateway is set and {name} is not: set tls_cert and tls_key"
                )
        return cls(config)

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._changed,  # type: ignore[arg-type]  # None is "no change", gRPC says; its stubs do not
            require_client_authentication="tls_client_ca" in self._files,
        )

    def ssl_context(self, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
        """The same for a server whose TLS is Python's. `protocols` is one of PROTOCOLS: what it speaks."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = self._contexts[protocols].verify_mode

        def on_handshake(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            """Called for each new connection, which goes on with the files of now."""
            self._changed()
            connection.context = self._contexts[protocols]

        context.sni_callback = on_handshake
        return context

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each new connection, in a thread of its own: None when nothing is new."""
        signature = self._signatures()
        if signature == self._signature:
            return None
        self._signature = signature
        try:
            self._configuration = self._load()
        except ConfigError as error:
            metrics.TLS_STALE.set(1)
            log.error("tls_files_unusable", error=str(error))  # noqa: TRY400 - a sentence for the operator
            return None
        metrics.TLS_STALE.set(0)
        log.info("tls_files_loaded")
        return self._configuration

    def _load(self) -> grpc.ServerCertificateConfiguration:
        pem = {name: _read(name, file) for name, file in self._files.items()}
        authorities = pem.get("tls_client_ca")
        contexts = {protocols: self._context(protocols, authorities) for protocols in PROTOCOLS}
        if self._signatures() != self._signature:  # what was checked may not be what was read
            raise ConfigError(
                "the files of the edge's certificate changed while they were read: they are read again"
            )
        self._contexts = contexts
        return grpc.ssl_server_certificate_configuration(
            [(pem["tls_key"], pem["tls_cert"])], root_certificates=authorities
        )

    def _context(self, protocols: tuple[str, ...], authorities: bytes | None) -> ssl.SSLContext:
        context = _checked_pair(self._files["tls_cert"], self._files["tls_key"])
        if authorities is not None:
            _add_authorities(context, self._files["tls_client_ca"], authorities)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context

    def _signatures(self) -> list[FileSignature]:
        return [file_signature(file) for file in self._files.values()]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; a name other than localhost may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} {file} cannot be read ({error.strerror}): name a PEM file") from error


def _checked_pair(certificate: Path, key: Path) -> ssl.SSLContext:
    """gRPC would take anything and then fail every handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise ConfigError(
            f"tls_cert {certificate} and tls_key {key} are no certificate and its key, in PEM and without a "
            f"passphrase ({_reason(error)})"
        ) from error
    return context


def _add_authorities(context: ssl.SSLContext, file: Path, pem: bytes) -> None:
    try:
        context.load_verify_locations(cadata=pem.decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_client_ca {file} holds no certificates in PEM ({_reason(error)})") from error
    context.verify_mode = ssl.CERT_REQUIRED


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
