"""`penstock secrets new`: what the services of a fleet need to trust each other, made before they start.

`penstock up` knows its instances and gives each a user of its own. A fleet that is scaled by others does not:
here each role is a user of the bus, and what an instance of it is called is its own choice.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.cli.exit_codes import EXIT_FAILED
from shared.blocks.block_hash import FLEET_KEY_BYTES
from shared.bus.credentials import Credentials
from shared.bus.permissions import OPERATOR, authorization, operator_user, role_user
from shared.files.atomic_write import write_secret
from shared.roles import ROLES

SERVER = "nats"
CONFIG_NAME = "nats.conf"
CREDENTIALS_NAME = "credentials.toml"
KEY_NAME = "fleet_key"
FOLDERS = (SERVER, OPERATOR, *ROLES)
LISTEN = "port: 4222\n"
ROUTE_USER = "route"
ROUTE_PORT = 6222
ROUTE_PING_S = 1
"""A server sees after three times that that it has lost another one without a word."""


def main(argv: Sequence[str]) -> int:
    parser = build_secrets_parser()
    args = parser.parse_args(argv)
    if bool(args.tls_cert) != bool(args.tls_key) or (args.tls_cert and not args.tls_ca):
        parser.error("--tls-cert and --tls-key come together, and with --tls-ca")
    try:
        servers = [host for host in args.nats_servers.split(",") if host]
        made = write_fleet_secrets(args.dir, args.tls_ca, args.tls_cert, args.tls_key, servers)
    except OSError as error:
        print(f"penstock secrets: {args.dir} cannot be written ({error.strerror})", file=sys.stderr)
        return EXIT_FAILED
    if made:
        print(f"one folder for the server, the operator and each role is in {args.dir}", file=sys.stderr)
    else:
        print(f"{args.dir} has them already; remove its folders' files to have new ones", file=sys.stderr)
    return 0


def build_secrets_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock secrets",
        description="Users of the bus for each role, with random passwords, and the key of the names of KV "
        "blocks, for fleets that something else than `penstock up` starts.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="write them, unless they are there")
    new.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        required=True,
        help=f"gets a folder each: {', '.join(FOLDERS)}; may be mounts",
    )
    new.add_argument(
        "--nats-servers",
        metavar="HOST,HOST",
        default="",
        help=f"the servers of a cluster, which all get the same configuration and find each other at port "
        f"{ROUTE_PORT} of these hosts, with a password of their own",
    )
    for option, what in (
        ("--tls-ca", "the certificates that the server's must be signed by: then TLS is a must"),
        ("--tls-cert", "a service's own certificate, for a server that wants to see one"),
        ("--tls-key", "the key of that"),
    ):
        new.add_argument(option, metavar="FILE", default="", help=f"where services will find {what}")
    return parser


def write_fleet_secrets(
    folder: Path, tls_ca: str = "", tls_cert: str = "", tls_key: str = "", servers: Sequence[str] = ()
) -> bool:
    """Return whether they had to be made. `servers` are the hosts of a cluster's. Raises OSError.

    The files of certificates are named as services will find them; they need not be there now.
    The server's file is the last one: when it is there, so are the others, and all belong together.
    """
    for name in FOLDERS:
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / SERVER / CONFIG_NAME).exists():
        return False
    users = [*map(role_user, ROLES), operator_user()]
    tls = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    credentials = [replace(Credentials.random(user.name), **tls) for user in users]
    fleet_key = secrets.token_hex(FLEET_KEY_BYTES)
    for one in credentials:
        one.write(folder / one.user / CREDENTIALS_NAME)
        if one.user != OPERATOR:
            write_secret(folder / one.user / KEY_NAME, fleet_key + "\n")
    entries = zip(users, (one.password for one in credentials), strict=True)
    config = LISTEN + authorization(entries) + "\n" + (_cluster(servers) if servers else "")
    write_secret(folder / SERVER / CONFIG_NAME, config)
    return True


def _cluster(hosts: Sequence[str]) -> str:
    """The part of a nats-server's configuration that makes it one of these and lets no other one in."""
    password = Credentials.random(ROUTE_USER).password
    routes = [f'"nats://{ROUTE_USER}:{password}@{host}:{ROUTE_PORT}"' for host in hosts]
    return (
        f'cluster: {{ name: penstock, port: {ROUTE_PORT}, ping_interval: "{ROUTE_PING_S}s", ping_max: 2\n'
        f'  authorization: {{ user: "{ROUTE_USER}", password: "{password}" }}\n'
        f"  routes: [{', '.join(routes)}] }}\n"
    )
