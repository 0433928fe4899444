"""The embedded nats-server, as an instance like the others: it is restarted on the same port.

It lets in nobody but the stack: every instance and the operator's commands have a user of their own, with the
permissions of `shared.bus.permissions` and a password that is made anew at every start.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from signal import SIGHUP

from services.launcher.network.ports import free_ports
from services.launcher.processes.child import send
from services.launcher.processes.instance import Instance, InstanceSpec, StartFailed
from services.launcher.state import StateDir, credentials_file, unwritable
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.nats_server import RUNTIME, nats_server_binary
from shared.bus.permissions import OPERATOR, BusUser, authorization, operator_user, role_user
from shared.files.atomic_write import write_secret
from shared.process.cores import usable_cores

HOST = "127.0.0.1"
NAME = "nats"
CONFIG_NAME = "nats.conf"
HIDDEN_LINES = (b"[INF]", b"Plaintext passwords detected")
"""Its chatter, and its advice for passwords that people choose: ours are random and in a file of our own."""
FEW_CORES = 2
"""The server has one thread of Go on up to so many cores: a token costs it a quarter less."""
START_TIMEOUT_S = 60.0
POLL_S = 0.02


def write_users(state: StateDir, instances: Iterable[tuple[str, str]]) -> Path:
    """The server's configuration; beside it the credentials of each (role, instance) and of the operator.
    Raises InvalidRequest where they cannot be written."""
    try:
        return _write_users(state, instances)
    except OSError as error:
        raise unwritable(state.path, error) from error


def _write_users(state: StateDir, instances: Iterable[tuple[str, str]]) -> Path:
    folder = state.make_bus_folder()
    users = [*(role_user(role, instance) for role, instance in instances), operator_user()]
    credentials = [Credentials.random(user.name) for user in users]
    for one in credentials:
        one.write(credentials_file(state.path, one.user))
    config = folder / CONFIG_NAME
    passwords = (one.password for one in credentials)
    write_secret(config, _config(zip(users, passwords, strict=True)))
    return config


def _config(users: Iterable[tuple[BusUser, str]]) -> str:
    """Return the server's configuration. Its name stands there too: a server reads nothing anew where that is
    given on the command line."""
    return f"server_name: penstock\n{authorization(users)}\n"


def let_in(state_dir: Path, instance: str, server: Instance) -> None:
    """Give an instance more a user of its own, where it has none; the server reads its users anew, and nobody
    who is connected is cut off. Raises InvalidRequest where that cannot be written."""
    own = credentials_file(state_dir, instance)
    if own.exists():
        return
    known = [load_credentials(str(file)) for file in sorted(own.parent.glob("*.toml"))]
    new = Credentials.random(instance)
    try:
        new.write(own)
        entries = [(_user_of(each.user), each.password) for each in (*known, new) if each is not None]
        write_secret(own.parent / CONFIG_NAME, _config(entries))
    except OSError as error:
        raise unwritable(state_dir, error) from error
    if server.process is not None:
        send(server.process, SIGHUP)


def _user_of(name: str) -> BusUser:
    """Return the user of the operator, or of an instance by its name, which begins with its role."""
    return operator_user() if name == OPERATOR else role_user(name.rpartition("-")[0], name)


def nats_spec(
    config: Path, environ: Mapping[str, str] = os.environ, cores: int | None = None
) -> tuple[InstanceSpec, str]:
    """A nats-server on a free port of this machine, and its URL. Raises Unavailable without a binary."""
    port = free_ports(HOST, 1)[0]
    settings = {**RUNTIME, **_go_threads(cores or usable_cores()), **environ}
    listen = ("--addr", HOST, "--port", str(port))
    command = (str(nats_server_binary()), "--config", str(config), *listen)
    spec = InstanceSpec(NAME, NAME, command, settings, hide=HIDDEN_LINES, reports=False)
    return spec, f"nats://{HOST}:{port}"


def _go_threads(cores: int) -> Mapping[str, str]:
    """Return the environment that keeps a Go server to one thread on few cores: with one for each core its
    goroutines wake each other across them, at every message. KV does not miss the others: within one machine
    it goes through shared memory."""
    return {"GOMAXPROCS": "1"} if cores <= FEW_CORES else {}


async def wait_until_up(server: Instance, url: str) -> None:
    """Raises StartFailed when the server does not listen in time."""
    host, _, port = url.removeprefix("nats://").rpartition(":")
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_s:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(POLL_S)
            continue
        writer.close()
        return
    raise StartFailed(f"nats-server did not start within {START_TIMEOUT_S:.0f} s: {server.last_words}")
