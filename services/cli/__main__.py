"""`penstock COMMAND …`: each command is one module, imported only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from services.cli.exit_codes import EXIT_USAGE

COMMANDS = {
    "up": "start the whole stack on this machine",
    "ask": "send one prompt and stream the answer",
    "status": "show the fleet: instances, queues, KV, rates",
    "audit": "show what every instance holds, per request",
    "keys": "make API keys for the gateway",
    "secrets": "make the bus users and the key of a fleet that is not started by `penstock up`",
    "drain": "let one instance finish its work and end",
    "index": "build the retriever's index of a folder",
    "bench": "measure the engine on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command; 2 for a command that does not exist."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(command_usage())
        return 0 if arguments else EXIT_USAGE
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"penstock: there is no command {name!r}\n\n{command_usage()}", file=sys.stderr)
        return EXIT_USAGE
    command = importlib.import_module(f"services.cli.{name}")
    code: int = command.main(rest)
    return code


def command_usage() -> str:
    lines = [f"  {name:8} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        ["usage: penstock COMMAND [options]", "", *lines, "", "penstock COMMAND --help tells the options."]
    )


if __name__ == "__main__":
    sys.exit(main())
