"""Plan what is run from the options: one process per instance, each with its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from services.launcher.options import REPOSITORY, StackOptions
from services.launcher.processes.instance import InstanceSpec
from services.launcher.role_settings import config_type
from services.launcher.state import credentials_file
from shared.config.config_file import FILE_VARIABLE, MODEL_TABLE
from shared.config.fields import COMMON_SETTINGS, MODEL_SETTINGS, text_of_value
from shared.config.settings import SourceKind
from shared.files.roll_file import stand_in_name
from shared.messages import MAX_DRAIN_S
from shared.process.cores import usable_cores
from shared.roles import ENGINE_ROLES, REQUIRED_ROLES, ROLES, inner_instance

OMP_VARIABLE = "OMP_NUM_THREADS"
KEPT_FORMAT = "json"
"""The form in which services tell us their lines: the log keeps it, and a terminal is shown text of it."""
PLANNER = "planner"
"""The name of the planner in the log; it is the command `plan`."""


def plan_instances(
    options: StackOptions,
    *,
    nats_url: str,
    grpc_ports: list[int],
    http_ports: list[int],
    environ: Mapping[str, str] = os.environ,
) -> list[InstanceSpec]:
    """`grpc_ports`, `http_ports`: one for each gateway.

    A process reads file and environment by itself; it is told what the stack has set where they say nothing,
    and what the command line says. Of several models each has the next instance in turn.
    """
    ports = iter(zip(grpc_ports, http_ports, strict=True))
    turns = {role: cycle(options.models) for role in REQUIRED_ROLES}
    specs = []
    for role, instance in instance_names(options.counts):
        told = _told(role, options) | {"instance": instance, "nats_url": nats_url, "log_format": KEPT_FORMAT}
        if len(options.models) > 1 and role in turns:
            model = next(turns[role])
            told |= {"model": model.model, "served_name": model.served_name}
        if role == "gateway":
            told["grpc_port"], told["http_port"] = next(ports)
        if not options.nats_url:
            told["nats_credentials"] = str(credentials_file(options.state_dir, instance))
        module, child = f"services.{role}", _environ(role, options, told, environ)
        inner_role = options.inner_roles.get(role, "")
        if inner_role:
            child |= _environ_inside(inner_role, instance, options)
        specs.append(
            InstanceSpec(
                role,
                instance,
                _command(module),
                child,
                module=module,
                preload=_preload(role, inner_role),
                inner_role=inner_role,
            )
        )
    return specs


def preloaded(options: StackOptions) -> list[str]:
    """Return what the process imports that all services of a stack are forked from."""
    roles = dict.fromkeys(role for role, _ in instance_names(options.counts))
    modules = (_preload(role, options.inner_roles.get(role, "")) for role in roles)
    return list(dict.fromkeys(module for each in modules for module in each))


def _preload(role: str, inner_role: str) -> tuple[str, ...]:
    return tuple(f"services.{each}.__main__" for each in (role, inner_role) if each)


def fork_server_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the process that services are forked from; each then gets one of its own."""
    paths = (str(REPOSITORY), environ.get("PYTHONPATH", ""))
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def stand_in_spec(spec: InstanceSpec, name: str, options: StackOptions) -> InstanceSpec:
    """Return what runs beside an instance, under another name, and does the same until it is told
    to end; then it finishes all that it has."""
    named = named_spec(spec, name, options)
    patient = {f"PENSTOCK_{spec.role.upper()}_DRAIN_TIMEOUT_S": str(MAX_DRAIN_S)}
    return replace(named, environ={**named.environ, **patient})


def named_spec(spec: InstanceSpec, name: str, options: StackOptions) -> InstanceSpec:
    """Return what runs beside an instance, under another name, and does the same."""
    told = {"PENSTOCK_INSTANCE": name}
    if not options.nats_url:
        told["PENSTOCK_NATS_CREDENTIALS"] = str(credentials_file(options.state_dir, name))
    if spec.inner_role:
        told |= _credentials_inside(spec.inner_role, name, options)
    return replace(spec, instance=name, environ={**spec.environ, **told})


def planner_spec(state_dir: Path, settings: Path, environ: Mapping[str, str] = os.environ) -> InstanceSpec:
    """Return what runs the planner of a stack: `penstock plan`, which writes what the launcher follows and is
    on the bus as the operator."""
    where = ("--settings", str(settings), "--state-dir", str(state_dir.resolve()))
    command = (*_command("services.cli"), "plan", "--act", "launcher", *where)
    return InstanceSpec(PLANNER, PLANNER, command, fork_server_environ(environ), reports=False)


def stand_in_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return role and name of what stands in for an instance of each role while that is started anew."""
    return [(role, stand_in_name(role, counts[role])) for role in ROLES if counts[role]]


def instance_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Role and name of every instance, in the order in which they start."""
    return [(role, f"{role}-{number}") for role in ROLES for number in range(counts[role])]


def bus_users(options: StackOptions) -> list[tuple[str, str]]:
    """Return role and name of whoever of the stack is on its bus, or will be as it is rolled."""
    return with_inner([*instance_names(options.counts), *stand_in_names(options.counts)], options)


def with_inner(named: list[tuple[str, str]], options: StackOptions) -> list[tuple[str, str]]:
    """Add those in the processes of others to role and name of instances."""
    inside = ((options.inner_roles.get(role, ""), name) for role, name in named)
    return [*named, *((inner, inner_instance(inner, name)) for inner, name in inside if inner)]


def _command(module: str) -> tuple[str, ...]:
    # -P: a folder named "services" in the user's current directory must not shadow ours.
    return (sys.executable, "-P", "-m", module)


def _told(role: str, options: StackOptions) -> dict[str, Any]:
    settings = options.settings[role].by_name.items()
    return {
        name: setting.value
        for name, setting in settings
        if setting.kind in (SourceKind.STACK, SourceKind.COMMAND_LINE)
    }


def _environ(
    role: str, options: StackOptions, told: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, str]:
    """The child's whole environment: what it is told stands in one variable each, and in no other."""
    child = fork_server_environ(environ)
    if options.config_file is not None:
        child[FILE_VARIABLE] = str(options.config_file)
    if role in ENGINE_ROLES:
        child.setdefault(OMP_VARIABLE, str(options.settings[role]["threads"].value or usable_cores()))
    for name, value in told.items():
        own = f"PENSTOCK_{role.upper()}_{name.upper()}"
        child.pop(own, None)
        child[_variable(role, name, own)] = text_of_value(value)
    return child


def _environ_inside(role: str, outer: str, options: StackOptions) -> dict[str, str]:
    """The variables by which the service in the process of `outer` is told what the stack has set for its
    role alone."""
    told = {}
    for name, value in _told(role, options).items():
        own = f"PENSTOCK_{role.upper()}_{name.upper()}"
        told[_variable(role, name, own) if name in MODEL_SETTINGS else own] = text_of_value(value)
    return told | _credentials_inside(role, outer, options)


def _credentials_inside(role: str, outer: str, options: StackOptions) -> dict[str, str]:
    """Two services of a process are two users of the bus."""
    if options.nats_url:
        return {}
    file = credentials_file(options.state_dir, inner_instance(role, outer))
    return {f"PENSTOCK_{role.upper()}_NATS_CREDENTIALS": str(file)}


def _variable(role: str, name: str, own: str) -> str:
    """The one by which a service of that role is told `name`."""
    of_draft = config_type(role).of_draft
    if name in COMMON_SETTINGS and not (of_draft and name == "model"):
        return f"PENSTOCK_{name.upper()}"
    return (
        f"PENSTOCK_{MODEL_TABLE.upper()}_{name.upper()}" if name in MODEL_SETTINGS and not of_draft else own
    )
