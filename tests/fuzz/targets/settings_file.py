"""Files that an operator writes: API keys, adapters, the configuration of a fleet, credentials of the bus."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from services.gateway.config import GatewayConfig
from services.retriever.config import RetrieverConfig
from shared.bus.credentials import load_credentials
from shared.config.config_file import read_config_file
from shared.config.settings import load_config
from shared.files.adapter_file import read_adapter_file
from shared.files.api_key_file import parse_api_keys, read_key_file
from shared.worker.config import EngineServiceConfig
from tests.fuzz.mutation import mutated_bytes, mutated_text
from tests.fuzz.target import Target, in_folder

KEY = f"""[[key]]
name = "web"
tenant = "acme"
hash = "sha256:{"0" * 64}"
requests_per_min = 600
concurrency = 16
tokens_per_min = 200000
cache = "exact"

[[key]]
name = "other"
tenant = "b"
hash = "sha256:{"1" * 64}"
"""
ADAPTER = """[[adapter]]
base = "my-llama"
name = "sql"
directory = "/models/sql"
version = 1763843812345
"""
CONFIG = """[common]
log_level = "info"
nats_url = "nats://127.0.0.1:4222"

[model]
model = "a"
dtype = "auto"

[gateway]
max_sessions = 10
default_deadline_s = 5.5
http_cors_origins = ["*"]
api_keys = "keys.toml"

[retriever]
corpora = ["docs=documents"]
soft_share = 0.5

[decode]
draft_tokens = 4
"""
CREDENTIALS = """user = "prefill-0"
password = "secret"
"""
TEXTS = {"keys": KEY, "adapters": ADAPTER, "config": CONFIG, "credentials": CREDENTIALS}
WORDS = (
    "[[",
    "]]",
    "[",
    "]",
    "=",
    '"',
    "true",
    "inf",
    "nan",
    "{}",
    "[]",
    "{a = 1}",
    "key",
    "adapter",
    "#",
    "\n",
    "0",
)


def _read_keys(path: Path) -> None:
    parse_api_keys(read_key_file(path), path)


def _read_config(path: Path) -> None:
    file = read_config_file(path)
    for config, section in (
        (GatewayConfig, "gateway"),
        (RetrieverConfig, "retriever"),
        (EngineServiceConfig, "decode"),
    ):
        load_config(config, section, environ={}, file=file)


READERS: dict[str, Callable[[Path], object]] = {
    "keys": _read_keys,
    "adapters": read_adapter_file,
    "config": _read_config,
    "credentials": lambda path: load_credentials(str(path)),
}


def make(rng: random.Random) -> bytes:
    """Return the kind of file, a line end, and what it holds."""
    kind = rng.choice(sorted(TEXTS))
    data = mutated_text(TEXTS[kind], rng, WORDS).encode("utf-8", "surrogatepass")
    return f"{kind}\n".encode() + (mutated_bytes(data, rng) if rng.random() < 0.1 else data)


def run(folder: Path, data: bytes) -> None:
    kind, _, content = data.partition(b"\n")
    read = READERS.get(kind.decode(errors="replace"))
    if read is None:
        return
    path = folder / "file.toml"
    path.write_bytes(content)
    read(path)


TARGET = Target("settings_file", make, in_folder(run), tries=500)
