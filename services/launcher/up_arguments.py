"""The arguments of `penstock up`, and what they say of themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

from services.launcher.state import DEFAULT_STATE_DIR
from shared.kv.transports import TRANSPORT_CHOICES
from shared.roles import OPTIONAL_ROLES, ROLES

DEFAULT_GRPC_PORT = 50051
DEFAULT_HTTP_PORT = 8000
DEFAULT_START_TIMEOUT_S = 120.0
MAX_START_TIMEOUT_S = 3600.0


def count(text: str) -> int:
    """A number of instances, or a port: a plain decimal number."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text[:6])


def build_up_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock up",
        usage="%(prog)s [-d] [options]",
        description="Start the whole stack on this machine: nats-server and one process per instance.",
        epilog="Options win over PENSTOCK_* variables, those over penstock.toml: see `penstock config`.",
    )
    parser.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="return when the stack is ready; it stays when the terminal closes, until `penstock down`",
    )
    for role in ROLES:
        least = 0 if role in OPTIONAL_ROLES else 1
        parser.add_argument(
            f"--{role}", type=count, metavar="N", help=f"{role} instances (default 1, at least {least})"
        )
    parser.add_argument(
        "--model",
        metavar="[NAME=]DIR|FILE|ID",
        action="append",
        default=[],
        help="model to serve (default: SmolLM2 if installed); may be given several times, the first one "
        "answers requests that name none, and each has as many instances as the options say",
    )
    parser.add_argument(
        "--draft",
        metavar="DIR|FILE|ID|none",
        help="draft model, of the first model (default: none, or the small demo model's)",
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME[@TENANT+TENANT]=DIR",
        action="append",
        default=[],
        help="LoRA adapter over the first model, asked for as MODEL:NAME; may be given several times",
    )
    parser.add_argument(
        "--corpus",
        metavar="[NAME[@TENANT+TENANT]=]PATH|none",
        action="append",
        help="documents to answer from (default: Penstock's own documentation); may be given several times",
    )
    parser.add_argument(
        "--nats-url",
        metavar="URL[,URL]",
        help="use this NATS instead of an embedded one; of a cluster name every server",
    )
    parser.add_argument("--grpc-host", help="address the gateways listen on (default 127.0.0.1)")
    parser.add_argument(
        "--grpc-port",
        type=count,
        metavar="PORT",
        help=f"port of the gateways, 0 = a free one (default {DEFAULT_GRPC_PORT})",
    )
    parser.add_argument(
        "--http-port",
        type=count,
        metavar="PORT",
        help=f"the same for HTTP, on the same address (default {DEFAULT_HTTP_PORT})",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="have prefill and decode workers come and go by what will be asked: TOML with a table [planner]",
    )
    parser.add_argument("--kv-transport", choices=TRANSPORT_CHOICES, help="KV path (default auto)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="(default info)")
    parser.add_argument(
        "--log-format",
        choices=("json", "text"),
        default="",
        help="text: for people; json: every line an object, also those of penstock and nats-server "
        "(default: what the services are configured to, else text on a terminal and JSON elsewhere, "
        "each line behind who said it)",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        default=DEFAULT_STATE_DIR,
        help="where stack.json and logs are written",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=DEFAULT_START_TIMEOUT_S,
        metavar="SECONDS",
        help="give up when an instance is not ready by then, or has got no further: indexing takes longer",
    )
    return parser
