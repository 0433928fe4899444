"""What `penstock up` can be told, checked before anything is started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shared.roles import OPTIONAL_ROLES, ROLES

CREDENTIALS_VARIABLE = "PENSTOCK_NATS_CREDENTIALS"
REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED_DRAFT = REPOSITORY / "shared" / "demo" / "models" / "draft"
DOCUMENTATION = REPOSITORY / "services"
"""The pages beside the services: what the shipped stack answers questions about."""

MAX_INSTANCES = 64
"""Per role; more processes than that on one machine is a typing error."""

DEFAULT_GRPC_PORT = 50051
DEFAULT_HTTP_PORT = 8000
DEFAULT_START_TIMEOUT_S = 120.0
MAX_START_TIMEOUT_S = 3600.0
NONE = "none"


@dataclass(frozen=True, slots=True)
class StackOptions:
    """A checked wish. `draft` and `corpus` are "" for none, `model` "" for the shipped one.

    `nats_url` is "" for a server of our own. `nats_credentials` is the file for a server of the user.
    `log_format` is "" for what is configured.
    """

    counts: Mapping[str, int]
    model: str
    draft: str
    corpus: str
    nats_url: str
    nats_credentials: str
    grpc_host: str
    grpc_port: int
    http_port: int
    kv_transport: str
    log_level: str
    log_format: str
    state_dir: Path
    start_timeout_s: float


def count(text: str) -> int:
    """A number of instances, or a port: a plain decimal number."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text[:6])


def build_up_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock up",
        description="Start the whole stack on this machine: nats-server and one process per instance.",
    )
    for role in ROLES:
        least = 0 if role in OPTIONAL_ROLES else 1
        parser.add_argument(
            f"--{role}", type=count, metavar="N", help=f"{role} instances (default 1, at least {least})"
        )
    parser.add_argument(
        "--model", default="", metavar="DIR|ID", help="model to serve (default: the demo model)"
    )
    parser.add_argument(
        "--draft", metavar="DIR|ID|none", help="draft model (default: the demo draft, none with --model)"
    )
    parser.add_argument(
        "--corpus", metavar="DIR|none", help="folder to answer from (default: Penstock's own documentation)"
    )
    parser.add_argument(
        "--nats-url", default="", metavar="URL", help="use this NATS instead of an embedded one"
    )
    parser.add_argument("--grpc-host", default="127.0.0.1", help="address the gateways listen on")
    parser.add_argument(
        "--grpc-port", type=count, default=DEFAULT_GRPC_PORT, help="first gateway's port, 0 = a free one"
    )
    parser.add_argument(
        "--http-port", type=count, default=DEFAULT_HTTP_PORT, help="the same for HTTP, on the same address"
    )
    parser.add_argument("--kv-transport", choices=("auto", "nats", "shm"), default="auto", help="KV path")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument(
        "--log-format",
        choices=("json", "text"),
        default="",
        help="text: for people; json: every line an object, also those of penstock and nats-server "
        "(default: what the services are configured to, each line behind who said it)",
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", default=Path(".penstock"), help="where stack.json is written"
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=DEFAULT_START_TIMEOUT_S,
        metavar="SECONDS",
        help="give up when an instance is not ready by then",
    )
    return parser


def parse_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> StackOptions:
    """Prints a sentence and exits with 2 on a wrong option, as argparse does."""
    parser = build_up_parser()
    args = parser.parse_args(argv)
    model = _model(parser, "--model", args.model or environ.get("PENSTOCK_MODEL", ""))
    draft = _draft(parser, args.draft, model)
    if not 0 < args.start_timeout <= MAX_START_TIMEOUT_S:
        parser.error(f"--start-timeout must be between 0 and {MAX_START_TIMEOUT_S:.0f} seconds")
    for option in ("grpc_port", "http_port"):
        if getattr(args, option) > 65535:
            parser.error(f"--{option.replace('_', '-')} must be between 0 and 65535")
    return StackOptions(
        counts=_counts(parser, args, draft),
        model=model,
        draft=draft,
        corpus=_corpus(parser, args.corpus),
        nats_url=_nats_url(parser, args.nats_url),
        nats_credentials=environ.get(CREDENTIALS_VARIABLE, ""),
        grpc_host=args.grpc_host,
        grpc_port=args.grpc_port,
        http_port=args.http_port,
        kv_transport=args.kv_transport,
        log_level=args.log_level,
        log_format=args.log_format,
        state_dir=args.state_dir.resolve(),
        start_timeout_s=args.start_timeout,
    )


def _counts(parser: argparse.ArgumentParser, args: argparse.Namespace, draft: str) -> dict[str, int]:
    counts = {}
    for role in ROLES:
        asked: int | None = getattr(args, role)
        least = 0 if role in OPTIONAL_ROLES else 1
        if asked is not None and not least <= asked <= MAX_INSTANCES:
            parser.error(f"--{role} must be between {least} and {MAX_INSTANCES}")
        counts[role] = 1 if asked is None else asked
    if not draft:
        if args.speculator:
            parser.error("--speculator needs a draft model: pass --draft DIR too")
        counts["speculator"] = 0
    return counts


def _model(parser: argparse.ArgumentParser, option: str, model: str) -> str:
    """A folder as an absolute path, anything else as the hub id it may be."""
    path = Path(model).expanduser()
    if model and path.is_dir():
        return str(path.resolve())
    if model.startswith((".", "/", "~")):
        parser.error(f"{option} {model} is not a folder")
    return model


def _draft(parser: argparse.ArgumentParser, draft: str | None, model: str) -> str:
    if draft is None:  # the shipped draft shares its tokenizer with the shipped model only
        return "" if model else str(SHIPPED_DRAFT)
    return "" if draft == NONE else _model(parser, "--draft", draft)


def _corpus(parser: argparse.ArgumentParser, corpus: str | None) -> str:
    if corpus is None:
        return str(DOCUMENTATION)
    if corpus == NONE:
        return ""
    path = Path(corpus).expanduser()
    if not path.is_dir():
        parser.error(f"--corpus {corpus} is not a folder")
    return str(path.resolve())


def _nats_url(parser: argparse.ArgumentParser, url: str) -> str:
    if url and (urlsplit(url).scheme not in ("nats", "tls") or not urlsplit(url).hostname):
        parser.error(f"--nats-url {url} is not a NATS address; write nats://HOST:PORT")
    return url
