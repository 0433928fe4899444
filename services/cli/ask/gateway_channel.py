"""The way to a gateway: with TLS where its edge has it, with an API key where it wants one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import grpc

from services.cli.ask.generate_call import OpenGateway
from services.cli.stack_file import add_state_dir, chosen_state_dir, stack_address
from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded

ADDRESS_VARIABLE = "PENSTOCK_GRPC"
KEY_VARIABLE = "PENSTOCK_API_KEY"
MAX_FILE_BYTES = 1 << 20
"""The largest file of a key or of certificates."""
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),  # a gateway's machine that vanished is noticed
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)

GRPC_OPTION = "--grpc HOST:PORT"


def add_gateway_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where")
    where.add_argument(
        "--grpc",
        default="",
        metavar="HOST:PORT",
        help=f"gateway (default: what {ADDRESS_VARIABLE} or stack.json says)",
    )
    add_state_dir(parser)
    _add_channel_options(parser)


def open_gateway(args: argparse.Namespace) -> OpenGateway:
    """Raises Unavailable without a stack, InvalidRequest for files that cannot be used."""
    address = gateway_address(args)
    metadata = call_metadata(args)
    return OpenGateway(address, open_channel(address, args), metadata)


def gateway_address(args: argparse.Namespace) -> str:
    """Return what the user says, else that of the stack that runs. Raises Unavailable without one."""
    return named_gateway(args) or stack_address(chosen_state_dir(args, GRPC_OPTION), "grpc", GRPC_OPTION)


def named_gateway(args: argparse.Namespace) -> str:
    """Return the address that the user says, "" for that of the stack that runs."""
    address: str = args.grpc or os.environ.get(ADDRESS_VARIABLE, "")
    return address


def _add_channel_options(parser: argparse.ArgumentParser) -> None:
    """There is none for the key itself: everybody on a machine can read a command line."""
    group = parser.add_argument_group("to a gateway that is not open to all")
    group.add_argument(
        "--api-key-file", metavar="FILE", help=f"file with the API key (default: what {KEY_VARIABLE} holds)"
    )
    group.add_argument("--tls-ca", metavar="FILE", help="talk TLS; who signed the gateway's certificate")
    group.add_argument("--tls-cert", metavar="FILE", help="the client's own certificate, where one is wanted")
    group.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert")


def open_channel(address: str, args: argparse.Namespace) -> grpc.Channel:
    """Raises InvalidRequest for files that cannot be used."""
    credentials = channel_credentials(args)
    if credentials is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def channel_credentials(args: argparse.Namespace) -> grpc.ChannelCredentials | None:
    """Return those of TLS, None without it. Raises InvalidRequest for files that cannot be used."""
    if bool(args.tls_cert) != bool(args.tls_key):
        raise InvalidRequest("--tls-cert and --tls-key go together: pass both")
    if not args.tls_ca:
        if args.tls_cert:
            raise InvalidRequest("--tls-cert needs --tls-ca: a certificate is shown over TLS alone")
        return None
    files = (args.tls_ca, args.tls_key, args.tls_cert)
    authorities, key, certificate = (_file(file) if file else None for file in files)
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def call_metadata(args: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """The API key, where there is one. Raises InvalidRequest for one that cannot be sent."""
    if args.api_key_file:
        key, source = _file(args.api_key_file).decode("latin-1").strip(), args.api_key_file
    else:
        key, source = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
        if not key:
            return ()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidRequest(f"{source} holds no API key: it must hold one and nothing else")
    return (("authorization", f"Bearer {key}"),)


def _file(name: str) -> bytes:
    return read_bounded(Path(name), MAX_FILE_BYTES, name)
