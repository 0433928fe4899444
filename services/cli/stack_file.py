"""Find the running stack by the `stack.json` that the launcher writes, from whatever directory.

It is that of the state directory that the user names, else that of `.penstock` here, else the one that this
user has running anywhere; of several the user says which.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.errors import Unavailable
from shared.files.stack_register import running_stacks

DEFAULT_STATE_DIR = Path(".penstock")
STACK_NAME = "stack.json"
MAX_STACK_BYTES = 1 << 20
"""The longest stack.json that is read."""


class NoStack(Unavailable):
    """There is no stack, or its state cannot be read."""


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help=f"where `penstock up` wrote stack.json (default: {DEFAULT_STATE_DIR} here, else that of your "
        "running stack)",
    )


def chosen_state_dir(args: argparse.Namespace, option: str) -> Path:
    """Return the state directory for a command's `--state-dir`, looked for and asked for once. Raises
    NoStack."""
    args.state_dir = state_dir = find_state_dir(args.state_dir, option)
    return state_dir


def find_state_dir(state_dir: Path | None, option: str) -> Path:
    """Return the state directory of the stack that is meant; `option` is what the user may pass instead.

    Raises NoStack where several run and nobody says which.
    """
    if state_dir is not None:
        return state_dir
    running = running_stacks()
    if (DEFAULT_STATE_DIR / STACK_NAME).exists() or not running:
        return DEFAULT_STATE_DIR
    if len(running) == 1:
        return running[0]
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _chosen(running)
    raise NoStack(
        f"{len(running)} of your stacks run: {', '.join(map(str, running))}; pass one of them with "
        f"--state-dir, or pass {option}"
    )


def _chosen(running: Sequence[Path]) -> Path:
    """Ask the user which. Raises NoStack where the answer is none of them."""
    for number, state_dir in enumerate(running, 1):
        print(f"{number}  {state_dir}", file=sys.stderr)
    print(f"Which stack, 1 to {len(running)}? ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if not answer.isdecimal() or not 1 <= int(answer) <= len(running):
        raise NoStack(f"{answer!r} is none of them; pass one with --state-dir")
    return running[int(answer) - 1]


def stack_address(state_dir: Path, key: str, option: str) -> str:
    """`key` is "grpc" or "nats"; `option` is what the user may pass instead. Raises NoStack."""
    address = _stack(state_dir, option).get(key)
    if not isinstance(address, str) or not address:
        raise NoStack(f"{state_dir / STACK_NAME} has no {key} address; restart the stack, or pass {option}")
    return address


def stack_credentials(state_dir: Path, option: str) -> str:
    """The file with the user and password for the stack's bus; "" when it needs none. Raises NoStack."""
    file = _stack(state_dir, option).get("nats_credentials")
    return file if isinstance(file, str) else ""


def stack_instances(state_dir: Path, option: str) -> frozenset[str]:
    """The instances that the stack has. Raises NoStack."""
    return frozenset(row["id"] for row in _instances(state_dir, option))


def stack_names(state_dir: Path, option: str) -> frozenset[str]:
    """The instances of the stack with those in the processes of others. Raises NoStack."""
    rows = _instances(state_dir, option)
    return frozenset(name for row in rows for name in (row["id"], row.get("inner")) if name)


def stack_roll(state_dir: Path, option: str) -> tuple[int | None, str, str]:
    """Return the number of the roll that the launcher follows (None: it knows of none), which instance stands
    in for others, "" for none, and why it could not be started. Raises NoStack."""
    stack = _stack(state_dir, option)
    number = stack.get("roll")
    return (
        number if isinstance(number, int) else None,
        str(stack.get("stand_in", "")),
        str(stack.get("roll_trouble", "")),
    )


def stack_scale(state_dir: Path, option: str) -> tuple[int | None, str]:
    """Return the number of the scale that the launcher follows (None: it knows of none), and why an instance
    could not be started, "" for nothing. Raises NoStack."""
    stack = _stack(state_dir, option)
    number = stack.get("scale")
    return number if isinstance(number, int) else None, str(stack.get("scale_trouble", ""))


def stack_shares_ports(state_dir: Path, option: str) -> bool:
    """Return whether all gateways listen on the same ports. Raises NoStack."""
    return _stack(state_dir, option).get("share_ports") is True


def stack_pids(state_dir: Path, option: str) -> dict[str, int]:
    """Return the processes that the stack's instances are. Raises NoStack."""
    rows = _instances(state_dir, option)
    return {row["id"]: row["pid"] for row in rows if isinstance(row.get("pid"), int)}


def stack_adapter_file(state_dir: Path, option: str) -> str:
    """The file of adapters that the stack's workers follow. Raises NoStack."""
    file = _stack(state_dir, option).get("adapter_file")
    if not isinstance(file, str) or not file:
        raise NoStack(f"{state_dir / STACK_NAME} names no adapter file; restart the stack, or pass {option}")
    return file


def stack_models(state_dir: Path, option: str) -> tuple[str, ...]:
    """Return where the files of the stack's models are. Raises NoStack."""
    models = _stack(state_dir, option).get("models")
    return tuple(path for path in models if isinstance(path, str)) if isinstance(models, list) else ()


def _instances(state_dir: Path, option: str) -> list[dict[str, Any]]:
    instances = _stack(state_dir, option).get("instances")
    rows = instances if isinstance(instances, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _stack(state_dir: Path, option: str) -> dict[str, Any]:
    path = state_dir / STACK_NAME
    try:
        with path.open("rb") as file:
            stack = json.loads(file.read(MAX_STACK_BYTES))
    except FileNotFoundError as error:
        raise NoStack(
            f"no stack runs from {state_dir}; start one with `penstock up`, or pass {option}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise NoStack(f"{path} cannot be read ({error}); restart the stack, or pass {option}") from error
    return stack if isinstance(stack, dict) else {}
