"""From the options to what is run: one process per instance, each with its environment."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping

from services.launcher.instance import InstanceSpec
from services.launcher.options import CREDENTIALS_VARIABLE, REPOSITORY, StackOptions
from services.launcher.state import credentials_file
from shared.config import ConfigError, ServiceConfig, load_config
from shared.kv_hash import FLEET_KEY_BYTES
from shared.roles import ENGINE_ROLES, ROLES


def plan_instances(
    options: StackOptions,
    *,
    nats_url: str,
    grpc_ports: list[int],
    http_ports: list[int],
    environ: Mapping[str, str] = os.environ,
) -> list[InstanceSpec]:
    """`grpc_ports`, `http_ports`: one for each gateway. Thread counts of the environment win."""
    common = {
        **environ,
        "PENSTOCK_NATS_URL": nats_url,
        "PENSTOCK_LOG_LEVEL": options.log_level,
        "PENSTOCK_METRICS_PORT": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), environ.get("PYTHONPATH", "")))),
        "PYTHONUNBUFFERED": "1",
        **_fleet_key(environ),
    }
    if options.log_format:
        common["PENSTOCK_LOG_FORMAT"] = options.log_format
    if options.model:
        common["PENSTOCK_MODEL"] = options.model
    threads = str(threads_per_model(options.counts))
    specs = []
    ports = iter(zip(grpc_ports, http_ports, strict=True))
    for role, instance in instance_names(options.counts):
        settings = common | _settings(role, options, threads, environ)
        if role == "gateway":
            grpc_port, http_port = next(ports)
            settings["PENSTOCK_GATEWAY_GRPC_PORT"] = str(grpc_port)
            settings["PENSTOCK_GATEWAY_HTTP_PORT"] = str(http_port)
        settings["PENSTOCK_INSTANCE"] = instance
        if not options.nats_url:
            settings[CREDENTIALS_VARIABLE] = str(credentials_file(options.state_dir, instance))
        specs.append(InstanceSpec(role, instance, _command(role), settings))
    return specs


def instance_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Role and name of every instance, in the order in which they start."""
    return [(role, f"{role}-{number}") for role in ROLES for number in range(counts[role])]


def _fleet_key(environ: Mapping[str, str]) -> dict[str, str]:
    """A new key for this stack, unless the environment or the configuration file has one."""
    try:
        stated = load_config(ServiceConfig, "launcher", environ=environ).fleet_key
    except ConfigError:
        return {}  # a service that starts says so better
    return {} if stated else {"PENSTOCK_FLEET_KEY": secrets.token_hex(FLEET_KEY_BYTES)}


def threads_per_model(counts: Mapping[str, int]) -> int:
    """The cores divided among the processes that compute, at least one each."""
    processes = sum(counts[role] for role in ENGINE_ROLES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, processes))


def _command(role: str) -> tuple[str, ...]:
    # -P: a folder named "services" in the user's current directory must not shadow ours.
    return (sys.executable, "-P", "-m", f"services.{role}")


def _settings(role: str, options: StackOptions, threads: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What only this role is told."""
    if role == "gateway":
        return {
            "PENSTOCK_GATEWAY_GRPC_HOST": options.grpc_host,
            "PENSTOCK_GATEWAY_HTTP_HOST": options.grpc_host,
        }
    if role == "retriever":
        return {
            "PENSTOCK_RETRIEVER_CORPUS": options.corpus,
            "PENSTOCK_RETRIEVER_STATE_DIR": str(options.state_dir),
        }
    if role not in ENGINE_ROLES:
        return {}
    name = f"PENSTOCK_{role.upper()}_THREADS"
    settings = {name: environ.get(name, threads), "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", threads)}
    if role == "speculator":
        settings["PENSTOCK_SPECULATOR_MODEL"] = options.draft
    if role == "decode":
        settings["PENSTOCK_DECODE_KV_TRANSPORT"] = options.kv_transport
    return settings
