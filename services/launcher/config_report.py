"""`penstock config`: the settings that count, each with where it came from.

It takes the options of `penstock up` and shows what its services would be told. `--alone` shows what a
service has that is started by hand, or by a container: no stack sets anything for it.
"""

from __future__ import annotations

from shared.process.quiet_end import end_quietly, interrupts_end_at_once

with interrupts_end_at_once():
    import json
    import os
    import re
    import sys
    from collections.abc import Iterator, Mapping, Sequence
    from dataclasses import replace
    from pathlib import Path
    from typing import Any

    from services.launcher.model_check import ModelRefused, check_models
    from services.launcher.options import StackOptions, stack_options
    from services.launcher.plan import instance_names, with_inner
    from services.launcher.role_settings import settings_of, stack_problems
    from services.launcher.up_arguments import build_up_parser
    from services.launcher.virtual_names import (
        described_virtual_model,
        virtual_model_problems,
        virtual_models_of,
    )
    from shared.config.config_file import ConfigFile, find_config_file
    from shared.config.fields import ConfigError
    from shared.config.settings import STACK_SOURCE, Setting, Settings, SourceKind, unknown_variables
    from shared.errors import PenstockError
    from shared.roles import ROLES
    from shared.sampling.defaults import SamplingDefault, all_defaults
    from shared.text.model_sampling import SETTING as SAMPLING
    from shared.text.model_sampling import served_sampling
    from shared.text.model_source import resolve_model

EXIT_WRONG = 2
SECRET = "********"  # noqa: S105 - what is shown instead of one
OWN_SERVER = "a server of its own"
OWN_CREDENTIALS = "a file for each instance"
VIRTUAL = "virtual_models"
_PASSWORD = re.compile(r"://[^/@]*@")


def main(argv: Sequence[str]) -> int:
    """The exit code: 0, or 2 when something is wrong; every problem is a line on stderr."""
    parser = build_up_parser()
    parser.prog, parser.epilog = "penstock config", None
    parser.description = (
        "Show the settings of every service, and where each came from. Takes the options of `up`."
    )
    parser.add_argument(
        "--check", action="store_true", help="only say what is wrong; exit code 2 if anything is"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, by service and setting")
    parser.add_argument(
        "--alone", action="store_true", help="of services that are not started by `penstock up`"
    )
    args = parser.parse_args(argv)
    options = stack_options(parser, args, os.environ, on_terminal=sys.stdout.isatty())
    settings, problems = _alone(os.environ) if args.alone else (_started(options), list(options.problems))
    if args.check:
        problems += [*unknown_variables(os.environ), *_model_problems(options)]
    else:
        try:
            sampling = _sampling_in_force(settings["decode"])
        except PenstockError as error:
            sampling = ()
            problems.append(error.message)
        print(_as_json(settings, sampling) if args.json else "\n".join(_lines(settings, sampling)))
    for problem in problems:
        print(f"penstock config: {problem}", file=sys.stderr)
    if args.check and not problems:
        print(f"the configuration is right ({options.config_file or 'no file'})")
    return EXIT_WRONG if problems else 0


def _started(options: StackOptions) -> Mapping[str, Settings]:
    """Add what is known only when a stack starts, in words."""
    names = with_inner(instance_names(options.counts), options)
    for role, settings in options.settings.items():
        own = ", ".join(name for of, name in names if of == role) or "none is started"
        told = {"instance": own}
        if not options.nats_url:
            told |= {"nats_url": OWN_SERVER, "nats_credentials": OWN_CREDENTIALS}
        for name, words in told.items():
            if not settings[name].said:  # else it is a problem
                settings.by_name[name] = Setting(words, SourceKind.STACK, STACK_SOURCE)
    return options.settings


def _alone(environ: Mapping[str, str]) -> tuple[dict[str, Settings], list[str]]:
    problems: list[str] = []
    try:
        file = find_config_file(environ)
    except ConfigError as error:
        file, problems = ConfigFile(), [error.message]
    settings = {role: settings_of(role, file, environ, {}, {}) for role in ROLES}
    problems += virtual_model_problems(settings["gateway"][VIRTUAL], ())
    return settings, problems + list(stack_problems(settings, dict.fromkeys(ROLES, 0)))


def _model_problems(options: StackOptions) -> Iterator[str]:
    """Return the problems of models in folders; nothing is fetched for a check."""
    named = [*(each.model for each in options.models), options.draft]
    if any(model and not Path(model).expanduser().is_dir() for model in named):
        print(f"not looked at, since it is not in a folder: {', '.join(filter(None, named))}")
        return
    try:
        check_models(options, print)
    except ModelRefused as error:
        yield error.message


def _sampling_in_force(decode: Settings) -> tuple[SamplingDefault, ...]:
    """Return the sampling of requests that do not say; none where the model is one of the hub, not
    fetched."""
    model, words = decode["model"].value, decode[SAMPLING]
    if decode.problems or (model and not Path(model).expanduser().exists()):
        return ()
    said = served_sampling(resolve_model(model), words.value)
    return all_defaults(
        replace(each, source=words.source) if each.source == SAMPLING else each for each in said
    )


def _lines(settings: Mapping[str, Settings], sampling: Sequence[SamplingDefault]) -> Iterator[str]:
    shown = {role: {name: _shown(s) for name, s in settings[role].by_name.items()} for role in ROLES}
    name_width = max(len(name) for values in shown.values() for name in values)
    for role, values in shown.items():
        yield f"[{role}]"
        for name, value in values.items():
            text = json.dumps(value, ensure_ascii=False)
            yield f"  {name:{name_width}}  {text:24}  {settings[role][name].source}"
            for each in sampling if name == SAMPLING else ():
                yield f"    {each.name:{name_width - 2}}  {each.shown!s:24}  {each.source}"
            for model in virtual_models_of(settings[role][name]) if name == VIRTUAL else ():
                yield f"    {model.name:{name_width - 2}}  {described_virtual_model(model)}"
        yield ""


def _as_json(settings: Mapping[str, Settings], sampling: Sequence[SamplingDefault]) -> str:
    report: dict[str, dict[str, dict[str, Any]]] = {
        role: {
            name: {"value": _shown(setting), "source": setting.source, "kind": setting.kind.value}
            for name, setting in settings[role].by_name.items()
        }
        for role in ROLES
    }
    report["gateway"][VIRTUAL]["names"] = {
        model.name: described_virtual_model(model)
        for model in virtual_models_of(settings["gateway"][VIRTUAL])
    }
    report["decode"][SAMPLING]["in_force"] = {
        each.name: {"value": each.shown, "source": each.source} for each in sampling
    }
    return json.dumps(report, indent=1, ensure_ascii=False)


def _shown(setting: Setting) -> Any:
    if setting.secret:
        return SECRET if setting.value else ""
    return _PASSWORD.sub(f"://{SECRET}@", setting.value) if isinstance(setting.value, str) else setting.value


if __name__ == "__main__":
    sys.exit(end_quietly(lambda: main(sys.argv[1:])))
