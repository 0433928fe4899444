"""`penstock secrets new`: users of the bus by role, for fleets that something else starts."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from services.cli.__main__ import main
from services.cli.fleet.secrets import FOLDERS, LISTEN, ROUTE_PORT
from shared.bus import Bus
from shared.bus.cluster_watch import servers_reached_from
from shared.bus.credentials import load_credentials
from shared.bus.nats_server import NatsServer
from shared.config.fields import ServiceConfig
from shared.config.settings import load_config
from shared.errors import Unavailable
from shared.roles import ROLES
from shared.seams.chance import CHANCE
from tests.support.wait import until


def made(folder: Path) -> Path:
    assert main(["secrets", "new", "--dir", str(folder)]) == 0
    return folder


def test_each_folder_has_its_own_secrets_for_nobody_else_to_read(tmp_path: Path) -> None:
    folder = made(tmp_path / "secrets")
    assert {path.name for path in folder.iterdir()} == set(FOLDERS)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    passwords = {(folder / role / "credentials.toml").read_text() for role in ROLES}
    assert len(passwords) == len(ROLES)
    assert len({(folder / role / "fleet_key").read_text() for role in ROLES}) == 1
    assert not (folder / "operator" / "fleet_key").exists()


def test_certificates_are_named_as_services_will_find_them(tmp_path: Path) -> None:
    files = {"tls_ca": "/tls/ca.crt", "tls_cert": "/tls/own.crt", "tls_key": "/tls/own.key"}
    options = [word for name, file in files.items() for word in (f"--{name.replace('_', '-')}", file)]
    assert main(["secrets", "new", "--dir", str(tmp_path), *options]) == 0
    for role in (*ROLES, "operator"):
        told = tomllib.loads((tmp_path / role / "credentials.toml").read_text())
        assert told.items() >= files.items()
        assert told["user"] == role


@pytest.mark.parametrize("options", [["--tls-cert", "a"], ["--tls-cert", "a", "--tls-key", "b"]])
def test_half_of_the_certificates_is_refused(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["secrets", "new", "--dir", str(tmp_path), *options])
    assert caught.value.code == 2
    assert "--tls-cert and --tls-key come together, and with --tls-ca" in capsys.readouterr().err


@asynccontextmanager
async def servers_of(config: str, *hosts: str) -> AsyncIterator[list[NatsServer]]:
    """A server at each host, all with this configuration but for where they listen."""
    async with AsyncExitStack() as stack:
        servers = []
        for host in hosts:
            own = config.removeprefix(LISTEN).replace(f"port: {ROUTE_PORT}", f'listen: "{host}:{ROUTE_PORT}"')
            servers.append(NatsServer(host, extra_config=own))
            stack.push_async_callback(servers[-1].stop)
            await servers[-1].start()
        yield servers


async def test_servers_of_a_cluster_let_each_other_in_and_nobody_else(tmp_path: Path) -> None:
    net = f"127.{CHANCE.bits(7) + 1}.{CHANCE.bits(7)}"  # where no other test has this port
    hosts = [f"{net}.{number}" for number in (1, 2, 3)]
    assert main(["secrets", "new", "--dir", str(tmp_path), "--nats-servers", ",".join(hosts)]) == 0
    config = (tmp_path / "nats" / "nats.conf").read_text()
    stranger = re.sub(r"(route:)[^@]+@", r"\1guessed@", config)
    async with servers_of(config, *hosts[:2]) as known, servers_of(stranger, hosts[2]) as unknown:
        for one in known:
            await until(partial(reaches, one, 2))
        await until(lambda: reaches(unknown[0], 1))  # for a moment it has the address of who turns it away
        for one in known:  # who has no time to say so reaches nobody for a while
            await until(partial(reaches, one, 2))


async def reaches(server: NatsServer, count: int) -> bool:
    return await servers_reached_from(f"{server.host}:{server.port}") == count


def test_a_server_that_is_alone_has_no_port_for_others(tmp_path: Path) -> None:
    assert "cluster" not in (made(tmp_path) / "nats" / "nats.conf").read_text()


def test_what_is_there_stays(tmp_path: Path) -> None:
    folder = made(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    made(folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_half_of_them_is_made_anew(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "nats" / "nats.conf").unlink()
    before = (folder / "decode" / "credentials.toml").read_text()
    made(folder)
    assert (folder / "decode" / "credentials.toml").read_text() != before
    assert (folder / "nats" / "nats.conf").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["secrets", "new", "--dir", str(tmp_path / "file" / "folder")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_the_fleet_key_is_one_that_services_take(tmp_path: Path) -> None:
    file = made(tmp_path) / "decode" / "fleet_key"
    config = load_config(ServiceConfig, "decode", environ={"PENSTOCK_FLEET_KEY_FILE": str(file)})
    assert config.fleet_key == file.read_text().strip()


async def test_a_server_with_them_lets_in_the_roles_and_nobody_else(tmp_path: Path) -> None:
    folder = made(tmp_path)
    config = (folder / "nats" / "nats.conf").read_text()
    assert config.startswith(LISTEN)
    server = NatsServer(extra_config=config.removeprefix(LISTEN))
    await server.start()
    try:
        for role in (*ROLES, "operator"):
            credentials = load_credentials(str(folder / role / "credentials.toml"))
            bus = await Bus.connect(server.url, name=role, credentials=credentials, sender=f"{role}-a")
            await bus.close()
        with pytest.raises(Unavailable, match="refuses"):
            await Bus.connect(server.url, name="stranger")
    finally:
        await server.stop()
