"""`penstock COMMAND …`: each command is one module, imported only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from services.cli.exit_codes import EXIT_USAGE
from services.cli.launcher_process import become
from shared.process.quiet_end import end_quietly, interrupts_end_at_once

COMMANDS = {
    "up": "start the whole stack on this machine",
    "down": "stop the stack that runs",
    "logs": "show what the services have said, and say",
    "restart": "let an instance or a role finish its work, and start it again",
    "roll": "start every instance anew, by the code that is here, and refuse no request",
    "scale": "have more instances of a role, or fewer, while the stack serves",
    "pull": "keep a model of the hub, of a folder or of a GGUF file",
    "list": "list the models that are kept here",
    "show": "show what a model is",
    "rm": "remove a model that is kept",
    "ask": "send one prompt and stream the answer",
    "search": "show the passages that fit a question",
    "chat": "talk with the model",
    "status": "show the fleet: instances, queues, KV, rates",
    "audit": "show what every instance holds, per request",
    "why": "say where the time of a request went, and which hop was slow",
    "usage": "say what each tenant has used of each model, and what that costs",
    "adapter": "load, unload and list adapters over the models that are served",
    "flags": "change settings at run time for some requests, with guards, and roll that back",
    "keys": "make, list and revoke API keys of the gateway",
    "secrets": "make the bus users and the key of a fleet that is not started by `penstock up`",
    "drain": "let one instance finish its work and end",
    "index": "build the retriever's index of a folder",
    "config": "show every setting with where it came from, or check them",
    "router": "learn which questions are hard, or how sure a model has to be, for rules of models",
    "distill": "make a draft model for a target of your own",
    "bench": "measure the engine or each hop on this machine, or a server under load",
    "capacity": "say what instances a load needs, from a profile of what they do",
    "plan": "say what instances the coming load needs, and have the fleet scaled so",
    "completion": "make your shell complete these commands",
}
LAUNCHER_PROGRAMS = {"up": "services.launcher", "config": "services.launcher.config_report"}
"""Commands that are programs of the launcher: this process becomes them."""
MODULES = {
    "down": "fleet.down",
    "logs": "fleet.logs",
    "restart": "fleet.restart",
    "roll": "fleet.roll",
    "scale": "fleet.scale",
    "ask": "ask.ask",
    "search": "ask.search",
    "chat": "ask.chat",
    "status": "fleet.status",
    "audit": "fleet.audit",
    "why": "fleet.why",
    "usage": "usage.usage",
    "adapter": "fleet.adapter",
    "flags": "flags.flags",
    "keys": "fleet.keys",
    "secrets": "fleet.secrets",
    "drain": "fleet.drain",
    "pull": "local.pull",
    "list": "local.list_models",
    "show": "local.show_model",
    "rm": "local.remove_model",
    "index": "local.index",
    "router": "router.router",
    "distill": "local.distill",
    "bench": "bench.bench",
    "capacity": "capacity.capacity",
    "plan": "planner.plan_command",
    "completion": "completion",
}
"""The module of each other command, in this package; its `main` is called."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command, 2 for one that does not exist. Without `argv` it is the process's."""
    if argv is None:
        return end_quietly(lambda: run_command(sys.argv[1:]))
    return run_command(argv)


def run_command(arguments: Sequence[str]) -> int:
    if len(arguments) > 1 and arguments[0] == "help":
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(command_usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else EXIT_USAGE
    name, *rest = arguments
    if name == "--version":
        print(f"penstock {_version()}")
        return 0
    if name not in COMMANDS:
        print(f"penstock: {_unknown(name)} `penstock help` lists the commands", file=sys.stderr)
        return EXIT_USAGE
    if name in LAUNCHER_PROGRAMS:
        become(LAUNCHER_PROGRAMS[name], rest)
    with interrupts_end_at_once():
        command = importlib.import_module(f"services.cli.{MODULES[name]}")
    code: int = command.main(rest)
    return code


def _unknown(name: str) -> str:
    """Say that there is no such command, and which one was probably meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - for a slip of the fingers alone

    kind = "option" if name.startswith("-") else "command"
    meant = get_close_matches(name, COMMANDS, 1)
    return f"there is no {kind} {name!r}" + (f": did you mean {meant[0]}?" if meant else ";")


def command_usage() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: penstock COMMAND [options]",
            "       penstock --version",
            "",
            *lines,
            "",
            "penstock help COMMAND tells the options.",
        ]
    )


def _version() -> str:
    from importlib import metadata  # noqa: PLC0415 - no other command waits for it

    return metadata.version("penstock")


if __name__ == "__main__":
    sys.exit(main())
