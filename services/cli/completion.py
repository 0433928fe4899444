"""`penstock completion SHELL`: the script with which a shell completes our commands and their options."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

import shtab

from services.cli.__main__ import COMMANDS, LAUNCHER_PROGRAMS
from services.cli.ask.ask_request import build_ask_parser
from services.cli.ask.chat import build_chat_parser
from services.cli.ask.search import build_search_parser
from services.cli.bench.ab import build_bench_ab_parser
from services.cli.bench.bench import SUBJECTS
from services.cli.bench.engine import build_bench_engine_parser
from services.cli.bench.micro.micro_options import build_bench_micro_parser
from services.cli.bench.serve_options import build_bench_serve_parser
from services.cli.capacity.capacity_options import build_capacity_parser
from services.cli.flags.flag_options import build_flags_parser
from services.cli.fleet.adapter import build_adapter_parser
from services.cli.fleet.audit import build_audit_parser
from services.cli.fleet.down import build_down_parser
from services.cli.fleet.drain import build_drain_parser
from services.cli.fleet.keys import build_keys_parser
from services.cli.fleet.logs import build_logs_parser
from services.cli.fleet.restart import build_restart_parser
from services.cli.fleet.roll import build_roll_parser
from services.cli.fleet.scale import build_scale_parser
from services.cli.fleet.secrets import build_secrets_parser
from services.cli.fleet.status import build_status_parser
from services.cli.fleet.why import build_why_parser
from services.cli.launcher_process import launcher_command
from services.cli.local.distill import build_distill_parser
from services.cli.local.index import build_index_parser
from services.cli.local.list_models import build_list_parser
from services.cli.local.pull import build_pull_parser
from services.cli.local.remove_model import build_rm_parser
from services.cli.local.show_model import build_show_parser
from services.cli.planner.plan_options import build_plan_parser
from services.cli.router.router import build_router_parser
from services.cli.usage.usage import build_usage_parser

SHELLS = ("bash", "zsh", "fish")
HELP_TIMEOUT_S = 60.0
OPTION = re.compile(r"^  (?:(-\w), )?(--[a-z-]+)(?: (\S+))?", re.MULTILINE)
"""A line of argparse's help: the option, and what is to follow it."""
FOLDERS = ("DIR", "DIR|ID", "DIR|ID|none", "DIR|none")
FILES = (
    "FILE",
    "FILE|TEXT",
    "DIR|FILE",
    "FILE|DIR",
    "ORG/NAME|DIR|FILE",
    "NAME|DIR|FILE",
    "[NAME=]DIR|FILE|ID",
    "DIR|FILE|ID|none",
)
FREE_TEXT = {"zsh": "()"}
"""Nothing to offer. zsh would else say what it is, and complete no option in its place."""
EPILOG = """\
bash: source <(penstock completion bash), in ~/.bashrc for good
zsh:  penstock completion zsh > "${fpath[1]}/_penstock"
fish: penstock completion fish > ~/.config/fish/completions/penstock.fish"""


def build_completion_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock completion",
        description="Print the script with which your shell completes `penstock`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser


def main(argv: Sequence[str]) -> int:
    shell = build_completion_parser().parse_args(argv).shell
    print(shtab.complete(_whole_parser(), shell))
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """Build one parser of all commands, as they are when each is run by itself."""
    builders: dict[str, Callable[[], argparse.ArgumentParser]] = {
        "adapter": build_adapter_parser,
        "ask": build_ask_parser,
        "audit": build_audit_parser,
        "why": build_why_parser,
        "usage": build_usage_parser,
        "bench": _bench_parser,
        "capacity": build_capacity_parser,
        "chat": build_chat_parser,
        "completion": build_completion_parser,
        "distill": build_distill_parser,
        "down": build_down_parser,
        "drain": build_drain_parser,
        "flags": build_flags_parser,
        "index": build_index_parser,
        "keys": build_keys_parser,
        "list": build_list_parser,
        "logs": build_logs_parser,
        "plan": build_plan_parser,
        "pull": build_pull_parser,
        "restart": build_restart_parser,
        "roll": build_roll_parser,
        "router": build_router_parser,
        "scale": build_scale_parser,
        "rm": build_rm_parser,
        "show": build_show_parser,
        "search": build_search_parser,
        "secrets": build_secrets_parser,
        "status": build_status_parser,
        **{name: partial(_launcher_parser, name, module) for name, module in LAUNCHER_PROGRAMS.items()},
    }
    whole = argparse.ArgumentParser(prog="penstock")
    whole.add_argument("--version", action="store_true", help="which version this is")
    commands = whole.add_subparsers()
    for name, summary in COMMANDS.items():
        command = builders[name]()
        _mark_paths(command)
        _add_command(commands, name, command, summary)
    return whole


def _add_command(commands: object, name: str, parser: argparse.ArgumentParser, summary: str) -> None:
    assert isinstance(commands, argparse._SubParsersAction)  # noqa: SLF001 - it has no public name
    commands.add_parser(name, parents=[parser], add_help=False, help=summary, conflict_handler="resolve")


def _bench_parser() -> argparse.ArgumentParser:
    builders = {
        "engine": build_bench_engine_parser,
        "serve": build_bench_serve_parser,
        "ab": build_bench_ab_parser,
        "micro": build_bench_micro_parser,
    }
    parser = argparse.ArgumentParser(prog="penstock bench")
    subjects = parser.add_subparsers()
    for name, summary in SUBJECTS.items():
        measuring = builders[name]()
        _mark_paths(measuring)
        _add_command(subjects, name, measuring, summary)
    return parser


def _launcher_parser(name: str, module: str) -> argparse.ArgumentParser:
    """The launcher's options, from its help: it is a program of its own."""
    helped = subprocess.run(  # noqa: S603 (our own program)
        [*launcher_command(module), "--help"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=HELP_TIMEOUT_S,
        env={**os.environ, "COLUMNS": "200"},
    )
    parser = argparse.ArgumentParser(prog=f"penstock {name}")
    for short, option, value in OPTION.findall(helped.stdout):
        if option == "--help":  # every parser has it
            continue
        choices = value[1:-1].split(",") if value.startswith("{") else None
        parser.add_argument(
            *filter(None, (short, option)), metavar=None if choices else value or None, choices=choices
        )
    return parser


def _mark_paths(parser: argparse.ArgumentParser) -> None:
    """Mark the options that take a file or a folder, as shtab looks for them."""
    for action in parser._actions:  # noqa: SLF001 - as shtab itself does
        if action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab's own mark
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's own mark
        elif not action.option_strings and not action.choices:
            action.complete = FREE_TEXT  # type: ignore[attr-defined]  # shtab's own mark
