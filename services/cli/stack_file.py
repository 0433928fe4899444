"""Find the running stack by the `stack.json` that the launcher writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shared.errors import Unavailable

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
        default=DEFAULT_STATE_DIR,
        help="where `penstock up` wrote stack.json",
    )


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
    instances = _stack(state_dir, option).get("instances")
    rows = instances if isinstance(instances, list) else []
    return frozenset(row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str))


def stack_adapter_file(state_dir: Path, option: str) -> str:
    """The file of adapters that the stack's workers follow. Raises NoStack."""
    file = _stack(state_dir, option).get("adapter_file")
    if not isinstance(file, str) or not file:
        raise NoStack(f"{state_dir / STACK_NAME} names no adapter file; restart the stack, or pass {option}")
    return file


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
