"""The settings of every service of a stack, and what is wrong with them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shared.config.config_file import ConfigFile
from shared.config.fields import ServiceConfig
from shared.config.settings import OptionValue, Settings, resolve_settings
from shared.errors import InvalidRequest
from shared.roles import ENGINE_ROLES, ROLES
from shared.sampling.defaults import parse_default_sampling

SAME_FOR_ALL = ("nats_url", "nats_credentials", "fleet_key", "model")
"""Services that do not agree in one of these do not make up one fleet."""


def config_type(role: str) -> type[ServiceConfig]:
    """Services are known here by their names, as those that are run: none is imported for what it does."""
    found: type[ServiceConfig] = getattr(
        import_module(f"services.{role}.config"), f"{role.capitalize()}Config"
    )
    return found


def settings_of(
    role: str,
    file: ConfigFile,
    environ: Mapping[str, str],
    stack: Mapping[str, Any],
    options: Mapping[str, OptionValue],
) -> Settings:
    return resolve_settings(config_type(role), role, environ=environ, file=file, stack=stack, options=options)


def stack_problems(settings: Mapping[str, Settings], counts: Mapping[str, int]) -> Iterator[str]:
    """One sentence for everything that is wrong: in a service, between its settings, between the services.

    `counts`: how many instances each role has in a stack; services that are started by hand have none.
    """
    seen: set[str] = set()
    for role in ROLES:
        for problem in (*settings[role].problems, *_contradictions(role, settings[role])):
            if problem not in seen:  # a table for several services is read by each of them
                seen.add(problem)
                yield problem
    yield from _disagreements(settings)
    if any(counts.values()):
        yield from _not_for_a_stack(settings, counts)


def _contradictions(role: str, settings: Settings) -> Iterator[str]:
    if settings.problems or role not in (*ENGINE_ROLES, "retriever"):
        return
    config: Any = settings.config(config_type(role))
    try:
        if role == "retriever":
            config.named_corpora()
            return
        if role == "decode":
            setting = settings["default_sampling"]
            parse_default_sampling(setting.value, setting.source)
        for problem in config.engine_config(Path()).problems():
            yield f"{role}: {problem}"
    except InvalidRequest as error:
        yield f"{role}: {error.message}"


def _disagreements(settings: Mapping[str, Settings]) -> Iterator[str]:
    for name in SAME_FOR_ALL:
        said = {
            role: settings[role][name]
            for role in ROLES
            if not (name == "model" and config_type(role).of_draft)
        }
        if len({setting.value for setting in said.values()}) > 1:
            places = {f"{role} ({setting.source})": None for role, setting in said.items()}
            yield (
                f"{name} is not the same for all services: it differs between {', '.join(places)}; "
                "say it once, under [common]"
            )


def _not_for_a_stack(settings: Mapping[str, Settings], counts: Mapping[str, int]) -> Iterator[str]:
    running = [role for role in ROLES if counts[role]]
    named = {settings[role]["instance"].source for role in running if settings[role]["instance"].said}
    for source in sorted(named):
        yield f"{source}: instance is the name of one process, and `penstock up` names its own; leave it out"
    credentials = settings["gateway"]["nats_credentials"]
    if credentials.said and not settings["gateway"]["nats_url"].said:
        yield (
            f"{credentials.source}: nats_credentials is for a NATS server of yours, and none is named; "
            "add nats_url, or leave it out"
        )
    users: Counter[tuple[str, int]] = Counter()
    for role in running:
        users[settings[role]["metrics_host"].value, settings[role]["metrics_port"].value] += counts[role]
    for (host, port), instances in users.items():
        if port and instances > 1:
            sources = {
                settings[role]["metrics_port"].source: None
                for role in running
                if settings[role]["metrics_port"].value == port
            }
            yield (
                f"{', '.join(sources)}: metrics_port {port} on {host} is for one process, and {instances} "
                "would take it; set it for a service with one instance, or leave it out: each takes its own"
            )
