"""Options of `penstock up`, checked before anything is started."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from services.launcher.corpus_options import NONE, said_corpora
from services.launcher.role_settings import settings_of, stack_problems
from services.launcher.stack_models import StackModel, file_problems, naming_problems, said_models, there
from services.launcher.up_arguments import (
    DEFAULT_GRPC_PORT,
    DEFAULT_HTTP_PORT,
    MAX_START_TIMEOUT_S,
    build_up_parser,
)
from services.launcher.virtual_names import virtual_model_problems, virtual_models_of
from shared.blocks.block_hash import FLEET_KEY_BYTES
from shared.bus.addresses import MAX_SERVERS, are_server_urls
from shared.config.config_file import ConfigFile, find_config_file
from shared.config.fields import ConfigError
from shared.config.settings import STACK_SOURCE, OptionValue, Setting, Settings, SourceKind
from shared.errors import InvalidRequest
from shared.files.adapter_file import split_adapter_tenants
from shared.files.model_store import kept_path
from shared.flags.flag_file import FLAG_FILE_NAME
from shared.roles import ENGINE_ROLES, OPTIONAL_ROLES, REQUIRED_ROLES, ROLES
from shared.text.default_model import find_default_model

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED_DRAFT = REPOSITORY / "shared" / "demo" / "models" / "draft"
DOCUMENTS = REPOSITORY / "shared" / "demo" / "documents"
"""Pages about Penstock: the shipped stack answers questions about them."""

MAX_INSTANCES = 64
"""Per role; more processes than that on one machine is a typing error."""

PLANNED_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"gateway": {"admit_wait_s": 60.0}}
"""Settings of a stack with a planner, where nobody has said anything: requests wait until their deadline (of
which place_share is a half) for a model that rests, rather than for a worker that restarts."""

OWN_ROLE, OWN_SETTING = "detokenizer", "own_detokenizer"
"""The service that a gateway may have in its own process, and the setting that says so."""

ADAPTER_FILE_NAME = "adapters.toml"
"""The adapter file in the state directory, where no other file is configured."""


class StackAdapter(NamedTuple):
    """An adapter of the command line. `tenants` None: those that it has in the file, or everybody."""

    name: str
    folder: str
    tenants: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The stack that is to run. `settings` are what counts for each role, from all sources; `problems` say
    what is wrong in them, and nothing may be started while there are any.

    `models` are those that are served, one at least, and `model` is the first of them, "" for the shipped
    one; of the roles that have a model each has its part of `counts`. `draft` is "" for none. `nats_url` is
    "" for a server of our own. `nats_credentials` is the file for a server of the user. `config_file` is
    absolute. `log_format` is the command line's, "" for what is configured. `adapters` are those that
    the command line adds to `adapter_file`, which workers follow, with their tenants where these are said.
    `detach`: whoever starts the stack goes on when it is ready. `planner_settings` is the file of a planner
    that scales it, None without one.
    """

    counts: Mapping[str, int]
    settings: Mapping[str, Settings]
    problems: tuple[str, ...]
    config_file: Path | None
    models: tuple[StackModel, ...]
    model: str
    draft: str
    nats_url: str
    nats_credentials: str
    grpc_host: str
    grpc_port: int
    http_port: int
    share_ports: bool
    log_format: str
    state_dir: Path
    start_timeout_s: float
    served_name: str
    adapters: tuple[StackAdapter, ...]
    adapter_file: Path
    detach: bool = False
    planner_settings: Path | None = None

    @property
    def inner_roles(self) -> Mapping[str, str]:
        """Return the role of the service in the process of each instance, by the role of that."""
        return {"gateway": OWN_ROLE} if self.settings["gateway"][OWN_SETTING].value else {}

    @property
    def text_roles(self) -> frozenset[str]:
        """The roles whose lines are shown as text."""
        return frozenset(role for role in ROLES if self.settings[role]["log_format"].value == "text")

    @property
    def model_paths(self) -> tuple[str, ...]:
        """Return where the files of all models are, and of the draft; a name of the hub as it is."""
        named = dict.fromkeys([*(each.model for each in self.models), self.draft])
        return tuple(str(kept_path(model) or model) for model in named if model)


def parse_options(
    argv: Sequence[str], environ: Mapping[str, str] = os.environ, *, on_terminal: bool = False
) -> StackOptions:
    """Prints a sentence and exits with 2 on a wrong option, as argparse does."""
    parser = build_up_parser()
    return stack_options(parser, parser.parse_args(argv), environ, on_terminal=on_terminal)


def stack_options(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    *,
    on_terminal: bool = False,
) -> StackOptions:
    """Combine the options, the environment and the configuration file. `on_terminal`: people read logs."""
    if not 0 < args.start_timeout <= MAX_START_TIMEOUT_S:
        parser.error(f"--start-timeout must be between 0 and {MAX_START_TIMEOUT_S:.0f} seconds")
    state_dir = args.state_dir.resolve()
    problems: list[str] = []
    try:
        file = find_config_file(environ)
    except ConfigError as error:
        file, problems = ConfigFile(), [error.message]
    said = said_models(parser, args.model, file, environ)
    options = {role: _options_of(parser, args, role, said) for role in ROLES}
    model = settings_of("decode", file, environ, {}, options["decode"])["model"].value
    draft = _draft(settings_of("speculator", file, environ, {}, options["speculator"])["model"], model)
    own = settings_of("gateway", file, environ, {}, options["gateway"])[OWN_SETTING]
    counts = _counts(parser, args, draft, max(1, len(said)), has_own=own.value)
    fleet_key = secrets.token_hex(FLEET_KEY_BYTES)
    for_people = {"log_format": "text"} if on_terminal else {}
    settings = {
        role: settings_of(
            role,
            file,
            environ,
            {
                "fleet_key": fleet_key,
                **for_people,
                **_defaults_of(role, draft, state_dir),
                **_defaults_of_models(role, said),
                **(PLANNED_DEFAULTS.get(role, {}) if args.plan else {}),
            },
            options[role],
        )
        for role in ROLES
    }
    gateway, decode = settings["gateway"], settings["decode"]
    _listen_beside_grpc(gateway)
    _follow_the_same_adapters(settings["speculator"], decode)
    own_model = settings_of("decode", file, environ, {}, {})["model"]
    served_name = decode["served_name"]
    problems += file_problems(file, own_model)
    virtual = gateway["virtual_models"]
    names = [model.name for model in virtual_models_of(virtual)]
    problems += naming_problems(said, served_name, gateway["default_model"], names)
    problems += virtual_model_problems(virtual, [each.served_name for each in said])
    if own.value and len(said) > 1:
        problems.append(
            f"{own.source}: {OWN_SETTING} is for a stack of one model, and here are {len(said)}, each with a "
            "detokenizer for itself; leave it out"
        )
    return StackOptions(
        counts=counts,
        settings=settings,
        problems=(*problems, *stack_problems(settings, counts)),
        models=said or (StackModel(served_name.value, model, decode["model"].source),),
        config_file=file.path.absolute() if file.path else None,
        model=model,
        draft=draft,
        nats_url=gateway["nats_url"].value if gateway["nats_url"].said else "",
        nats_credentials=gateway["nats_credentials"].value,
        grpc_host=gateway["grpc_host"].value,
        grpc_port=gateway["grpc_port"].value,
        http_port=gateway["http_port"].value,
        share_ports=gateway["share_ports"].value,
        log_format=args.log_format,
        state_dir=state_dir,
        start_timeout_s=args.start_timeout,
        served_name=served_name.value,
        adapters=tuple(_adapter(parser, each) for each in args.adapter),
        adapter_file=Path(decode["adapter_file"].value or state_dir / ADAPTER_FILE_NAME),
        detach=args.detach,
        planner_settings=_planner_file(parser, args.plan),
    )


def _options_of(
    parser: argparse.ArgumentParser, args: argparse.Namespace, role: str, models: Sequence[StackModel]
) -> dict[str, OptionValue]:
    """Return what the command line says for a role: it wins over the environment and the file."""
    said = {
        "log_level": ("--log-level", args.log_level),
        "log_format": ("--log-format", args.log_format or None),
        "nats_url": ("--nats-url", _nats_url(parser, args.nats_url)),
    }
    if role == "speculator":
        said["model"] = (
            "--draft",
            args.draft if args.draft in (None, NONE) else there(parser, "--draft", args.draft),
        )
    elif models:
        said["model"] = (models[0].source, models[0].model)
        if len(models) == 1 and models[0].name:
            said["served_name"] = (models[0].source, models[0].name)
    if role == "gateway":
        said |= {
            "grpc_host": ("--grpc-host", args.grpc_host),
            "grpc_port": ("--grpc-port", _port(parser, "--grpc-port", args.grpc_port)),
            "http_port": ("--http-port", _port(parser, "--http-port", args.http_port)),
        }
    if role == "retriever":
        said["corpus"] = ("--corpus", said_corpora(parser, args.corpus))
    if role in ("prefill", "decode"):
        said["kv_transport"] = ("--kv-transport", args.kv_transport)
    return {name: OptionValue(value, option) for name, (option, value) in said.items() if value is not None}


def _listen_beside_grpc(gateway: Settings) -> None:
    """HTTP, where nobody has said anything of its host."""
    if not gateway["http_host"].said:
        host = gateway["grpc_host"].value
        gateway.by_name["http_host"] = Setting(host, SourceKind.STACK, STACK_SOURCE)


def _follow_the_same_adapters(speculator: Settings, decode: Settings) -> None:
    """Let a speculator follow the workers' adapters, where nobody has said anything else."""
    if not speculator["adapter_file"].said:
        file = decode["adapter_file"].value
        speculator.by_name["adapter_file"] = Setting(file, SourceKind.STACK, STACK_SOURCE)


def _defaults_of(role: str, draft: str, state_dir: Path) -> dict[str, Any]:
    """Return what a stack sets where nobody has said anything."""
    if role == "gateway":
        ports = {"grpc_port": DEFAULT_GRPC_PORT, "http_port": DEFAULT_HTTP_PORT}
        return ports | {"share_ports": True, "flags": str(state_dir / FLAG_FILE_NAME)}
    if role == "retriever":
        return {"corpus": (str(DOCUMENTS),), "state_dir": str(state_dir)}
    if role not in ENGINE_ROLES:
        return {}
    adapters = {"adapter_file": str(state_dir / ADAPTER_FILE_NAME)}
    return adapters | ({"model": draft} if role == "speculator" else {})


def _defaults_of_models(role: str, models: Sequence[StackModel]) -> dict[str, Any]:
    """Return what a stack of several models sets where nobody has said anything."""
    if len(models) < 2:
        return {}
    first = models[0].served_name
    told: dict[str, dict[str, Any]] = {
        "gateway": {"default_model": first},
        "speculator": {"drafts_for": (first,)},
    }
    return told.get(role, {})


def _counts(
    parser: argparse.ArgumentParser, args: argparse.Namespace, draft: str, models: int, *, has_own: bool
) -> dict[str, int]:
    """Return how many instances there are in each role; each model has what is asked for. `has_own`: of the
    role that gateways have in their processes there are no others, where nobody wants any."""
    counts = {}
    for role in ROLES:
        asked: int | None = getattr(args, role)
        least = 0 if role in OPTIONAL_ROLES else 1
        if has_own and role == OWN_ROLE:
            least, asked = 0, asked or 0
        if asked is not None and not least <= asked <= MAX_INSTANCES:
            parser.error(f"--{role} must be between {least} and {MAX_INSTANCES}")
        counts[role] = (1 if asked is None else asked) * (models if role in REQUIRED_ROLES else 1)
        if counts[role] > MAX_INSTANCES:
            parser.error(
                f"--{role} {asked} for each of {models} models makes more than {MAX_INSTANCES} instances"
            )
    if not draft:
        if args.speculator:
            parser.error("--speculator needs a draft model: pass --draft DIR too")
        counts["speculator"] = 0
    return counts


def _draft(stated: Setting, model: str) -> str:
    """The shipped draft has the tokenizer of the shipped model: another model has no draft by itself."""
    if not stated.value:
        return str(SHIPPED_DRAFT) if not model and find_default_model() is None else ""
    return "" if stated.value == NONE else str(stated.value)


def _adapter(parser: argparse.ArgumentParser, text: str) -> StackAdapter:
    head, _, folder = text.partition("=")
    path = Path(folder).expanduser()
    try:
        name, tenants = split_adapter_tenants(head)
    except InvalidRequest as error:
        parser.error(f"--adapter {text}: {error.message}, then = and its folder")
    if not folder or not path.is_dir():
        parser.error(f"--adapter {text}: {folder!r} is not a folder; write {name}=DIR")
    return StackAdapter(name, str(path.resolve()), tenants)


def _planner_file(parser: argparse.ArgumentParser, path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        parser.error(f"--plan {path} is no file; name one with a table [planner]")
    return None if path is None else path.resolve()


def _port(parser: argparse.ArgumentParser, option: str, port: int | None) -> int | None:
    if port is not None and port > 65535:
        parser.error(f"{option} must be between 0 and 65535")
    return port


def _nats_url(parser: argparse.ArgumentParser, url: str | None) -> str | None:
    if url and not are_server_urls(url):
        parser.error(
            f"--nats-url {url} is not a NATS address; write nats://HOST:PORT, or up to {MAX_SERVERS} of a "
            "cluster with commas between them"
        )
    return url or None
