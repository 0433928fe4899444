"""A server certificate for 127.0.0.1 that signs itself, so that it is its own authority."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 30


@dataclass(frozen=True)
class Certificate:
    certificate: Path
    key: Path

    @property
    def server_config(self) -> str:
        """For nats-server: clients that do not talk TLS are refused."""
        return f'tls {{ cert_file: "{self.certificate}", key_file: "{self.key}" }}'


def make_certificate(folder: Path) -> Certificate:
    folder.mkdir(exist_ok=True)
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += [
        "-keyout",
        str(made.key),
        "-out",
        str(made.certificate),
        "-days",
        "2",
        "-subj",
        "/CN=penstock-test",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    return made
