"""From the options to what is run: one process per instance, each with its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from services.launcher.instance import InstanceSpec
from services.launcher.options import REPOSITORY, StackOptions
from shared.roles import ENGINE_ROLES, ROLES


def plan_instances(
    options: StackOptions,
    *,
    nats_url: str,
    grpc_ports: list[int],
    environ: Mapping[str, str] = os.environ,
) -> list[InstanceSpec]:
    """`grpc_ports`: one for each gateway. Thread counts of the environment win."""
    common = {
        **environ,
        "PENSTOCK_NATS_URL": nats_url,
        "PENSTOCK_LOG_LEVEL": options.log_level,
        "PENSTOCK_METRICS_PORT": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), environ.get("PYTHONPATH", "")))),
        "PYTHONUNBUFFERED": "1",
    }
    if options.model:
        common["PENSTOCK_MODEL"] = options.model
    threads = str(threads_per_model(options.counts))
    specs = []
    for role in ROLES:
        for number in range(options.counts[role]):
            settings = common | _settings(role, options, threads, environ)
            if role == "gateway":
                settings["PENSTOCK_GATEWAY_GRPC_PORT"] = str(grpc_ports[number])
            instance = f"{role}-{number}"
            settings["PENSTOCK_INSTANCE"] = instance
            specs.append(InstanceSpec(role, instance, _command(role), settings))
    return specs


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
        return {"PENSTOCK_GATEWAY_GRPC_HOST": options.grpc_host}
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
