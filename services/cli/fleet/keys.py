"""`penstock keys`: make an API key, whose hash goes into the gateway's file, list them, take one away."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from services.cli.exit_codes import EXIT_FAILED
from services.cli.view.table import table
from shared.cache_modes import CACHE_MODES
from shared.config.config_file import DEFAULT_FILE, find_config_file
from shared.config.fields import ConfigError, ConfigField, PathRule, Rule, checked_value
from shared.errors import InvalidRequest
from shared.files.api_key_file import (
    LIMITS,
    MAX_WEIGHT,
    ApiKey,
    KeyLimits,
    describe_api_key,
    hash_api_key,
    new_api_key,
    parse_api_keys,
    read_key_file,
    without_api_key,
)
from shared.files.atomic_write import write_file, write_secret
from shared.files.folder_lock import locked_folder

FILE_VARIABLE = "PENSTOCK_GATEWAY_API_KEYS"
TENANT_CHARS = 50
NAME_BYTES = 3
"""The random bytes of a name that nobody gave."""
MODE = 0o600
"""Nobody else may read it, whatever was before."""
HELP = {
    "requests_per_min": "requests that it may begin in a minute",
    "concurrency": "requests that it may have at a time",
    "tokens_per_min": "tokens of prompts and outputs in a minute",
}


def main(argv: Sequence[str]) -> int:
    parser = build_keys_parser()
    args = parser.parse_args(argv)
    try:
        file = Path(args.file or os.environ.get(FILE_VARIABLE, "") or _configured_file())
    except ConfigError as error:
        parser.error(error.message)
    if file == Path():
        parser.error(
            f"say which file: pass --file FILE, or set {FILE_VARIABLE} or api_keys under [gateway] in "
            f"{DEFAULT_FILE}, as for the gateway"
        )
    try:
        DOES[args.command](args, file)
    except InvalidRequest as error:
        print(f"penstock keys: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(
            f"penstock keys: {error.filename or file} cannot be written ({error.strerror})", file=sys.stderr
        )
        return EXIT_FAILED
    return 0


def _new(args: argparse.Namespace, file: Path) -> None:
    secret = new_api_key()
    name = args.name or f"{args.tenant[:TENANT_CHARS]}-{secrets.token_hex(NAME_BYTES)}"
    limits = KeyLimits(*(getattr(args, limit) for limit in LIMITS))
    key = ApiKey(name, args.tenant, hash_api_key(secret), limits, args.cache, args.operator, args.weight)
    if not args.out:
        add_api_key(file, key)
        print(secret)
        print(f"{name} of {args.tenant} is in {file}; its key is shown this once", file=sys.stderr)
        return
    out = Path(args.out)
    if out.exists():
        raise InvalidRequest(f"{out} is there already: name another --out, so that no key is lost")
    write_secret(out, f"{secret}\n")
    try:
        add_api_key(file, key)
    except BaseException:
        out.unlink()  # nobody takes this key
        raise
    print(f"{name} of {args.tenant} is in {file}, its key in {out}", file=sys.stderr)


def _list(_args: argparse.Namespace, file: Path) -> None:
    rows = [
        (key.name, key.tenant, *(_limit_text(getattr(key.limits, limit)) for limit in LIMITS), _more(key))
        for key in parse_api_keys(read_key_file(file), file)
    ]
    print(table(("key", "tenant", "requests/min", "at once", "tokens/min", ""), rows))


def _limit_text(limit: int | None) -> str:
    return "any" if limit is None else str(limit)


def _more(key: ApiKey) -> str:
    weight = f"weight {key.weight}" if key.weight != 1 else ""
    return ", ".join(
        filter(None, ("operator" if key.operator else "", weight, key.cache and f"cache {key.cache}"))
    )


def _revoke(args: argparse.Namespace, file: Path) -> None:
    change_keys(file, lambda text: without_api_key(text, args.name, file))
    print(f"{args.name} is out of {file}: gateways refuse its key within a second", file=sys.stderr)


DOES: dict[str, Callable[[argparse.Namespace, Path], None]] = {"new": _new, "list": _list, "revoke": _revoke}


def _configured_file() -> str:
    """Return the file that the gateway reads where nothing else is said; "" where that is nothing. Raises
    ConfigError."""
    file = find_config_file(os.environ)
    place = f"{file.place('gateway', 'api_keys')}: [gateway] api_keys"
    said = checked_value(
        ConfigField("api_keys", str, Rule("a file")), file.table("gateway").get("api_keys", ""), place
    )
    return str(file.value(said, PathRule.ALWAYS))


def build_keys_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock keys",
        description="The API keys of the gateway. A running one sees a change of their file within a second.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="make a key, print it once, add its hash to the file")
    new.add_argument("--tenant", required=True, help="whose key it is; KV is shared within a tenant alone")
    new.add_argument("--name", default="", help="of the key, in messages and logs (default: made up)")
    new.add_argument("--out", default="", metavar="FILE", help="put it there, for you alone, not on stdout")
    listing = commands.add_parser("list", help="show the keys of the file, without what they are")
    revoke = commands.add_parser("revoke", help="take a key out of the file")
    revoke.add_argument("name", metavar="NAME", help="of the key, as `penstock keys list` shows it")
    for command in (new, listing, revoke):
        command.add_argument(
            "--file", default="", help="the gateway's api_keys (default: what is configured)"
        )
    for limit in LIMITS:
        option = "--" + limit.replace("_", "-")
        new.add_argument(option, type=int, metavar="N", help=f"{HELP[limit]} (default: no limit)")
    new.add_argument(
        "--weight",
        type=int,
        metavar="N",
        default=1,
        help=f"of its tokens where several tenants wait: what they use counts as an N-th, 1 to {MAX_WEIGHT} "
        "(default: 1)",
    )
    new.add_argument(
        "--cache",
        choices=CACHE_MODES,
        default="",
        help="whether an earlier answer will do for a request that does not say (default: the gateway's)",
    )
    new.add_argument(
        "--operator",
        action="store_true",
        help="it may see what is said of all tenants: /metrics of the HTTP edge",
    )
    return parser


def add_api_key(file: Path, key: ApiKey) -> None:
    """Append an entry. Raises like `change_keys`."""
    change_keys(file, lambda text: text + ("\n" if text else "") + describe_api_key(key))


def change_keys(file: Path, change: Callable[[str], str]) -> None:
    """Change the text of the file in one step: who reads it sees it before or after, and no entry is lost.

    Raises InvalidRequest when the file, or what it would become, is none that a gateway takes; OSError.
    """
    file = file.resolve()  # what a link leads to is replaced, not the link
    with locked_folder(file.parent):
        text = change(read_key_file(file) if file.exists() else "")
        parse_api_keys(text, file)
        write_file(file, text.encode(), mode=MODE)
