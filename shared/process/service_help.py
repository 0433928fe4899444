"""Write what `python -m services.<role> --help` says: a service has settings, and no options but this one."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from shared.config.config_file import COMMON_TABLE, DEFAULT_FILE, FILE_VARIABLE, MODEL_TABLE
from shared.config.fields import COMMON_SETTINGS, MODEL_SETTINGS, Rule
from shared.process.quiet_end import end_quietly

WIDTH = 100


def answer_arguments(role: str, config_type: type[Any]) -> None:
    """End the process where it was given an argument: with its help, or with 2 and a sentence for any other.

    Services ask before they import what takes a second: none of it is needed for that.
    """
    argv = sys.argv[1:]
    if argv:
        sys.exit(end_quietly(lambda: _answer(role, config_type, argv)))


def _answer(role: str, config_type: type[Any], argv: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog=f"python -m services.{role}",
        description=f"One instance of the {role} service, until SIGTERM or Ctrl-C.",
        epilog=describe_settings(role, config_type),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _, unknown = parser.parse_known_args(argv)
    parser.error(
        f"there is no argument {(unknown or argv)[0]!r}; what can be set is set in {DEFAULT_FILE} or by "
        "variables, which --help lists"
    )


def describe_settings(role: str, config_type: type[Any]) -> str:
    """Every field's variable, default and meaning; those that all services have come last."""
    fields = dataclasses.fields(config_type)
    of_model = () if config_type.of_draft else MODEL_SETTINGS
    lines = [
        f"settings: [{COMMON_TABLE}], [{MODEL_TABLE}] and [{role}] of {DEFAULT_FILE}, or of what",
        f"{FILE_VARIABLE} names; then these variables. A wrong value ends the start with exit code 2.",
        "",
        f"of {role}:",
    ]
    for field in fields:
        if field.name not in (*COMMON_SETTINGS, *of_model):
            lines += _described(f"PENSTOCK_{role.upper()}_{field.name.upper()}", field)
    lines += ["", f"of the model, in [{MODEL_TABLE}]:"] if of_model else []
    for field in fields:
        if field.name in of_model:
            lines += _described(f"PENSTOCK_{MODEL_TABLE.upper()}_{field.name.upper()}", field)
    lines += ["", f"of all services (PENSTOCK_{role.upper()}_… for this one alone):"]
    for field in fields:
        if field.name in COMMON_SETTINGS:
            lines += _described(f"PENSTOCK_{field.name.upper()}", field)
    return "\n".join(lines)


def _described(variable: str, field: dataclasses.Field[Any]) -> list[str]:
    rule: Rule = field.metadata.get("rule", Rule(""))
    choices = f"; one of {', '.join(rule.choices)}" if rule.choices else ""
    text = f"{rule.help}{choices} (default: {_shown(field.default)})"
    return [f"  {variable}", *textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)]


def _shown(default: Any) -> str:
    """Write a value as it would stand in a variable."""
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default != "" else "empty"
