"""A server certificate for 127.0.0.1 that signs itself, so that it is its own authority."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 60


@dataclass(frozen=True)
class Certificate:
    certificate: Path
    key: Path

    @property
    def server_config(self) -> str:
        """For nats-server: clients that do not talk TLS are refused."""
        return f'tls {{ cert_file: "{self.certificate}", key_file: "{self.key}" }}'


@dataclass(frozen=True)
class Authority:
    """One that signs the certificates of others."""

    own: Certificate

    def sign(self, folder: Path, name: str, *names: str) -> Certificate:
        """Make a certificate for `name`, with other `names` of it like `IP:127.0.0.1`."""
        folder.mkdir(exist_ok=True)
        made, asked = Certificate(folder / f"{name}.pem", folder / f"{name}.key"), folder / f"{name}.csr"
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(made.key), "-out", str(asked)),
        )
        (folder / "names").write_text(f"subjectAltName={','.join(names or (f'DNS:{name}',))}")
        _openssl(
            *("x509", "-req", "-in", str(asked), "-days", "2", "-extfile", str(folder / "names")),
            *("-CA", str(self.own.certificate), "-CAkey", str(self.own.key), "-CAcreateserial"),
            *("-out", str(made.certificate)),
        )
        return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=TIMEOUT_S)


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
