"""Find the directory with a model's files, or its one file, by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.tokenizer_parts import gguf_tokenizer_digest
from shared.errors import NotFound
from shared.files.model_store import find_kept
from shared.text.default_model import (
    DEFAULT_ADAPTERS,
    DEFAULT_MODEL_NAME,
    DEFAULT_SAMPLING,
    check_default_model,
    find_default_model,
)
from shared.text.hub_fetch import FetchProgress, fetch_model

DEMO_MODEL = Path(__file__).parent.parent / "demo" / "models" / "target"
DEMO_MODEL_NAME = "penstock-demo"
DIGEST_BYTES = 16
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`path`: a directory in the Hugging Face layout, or a GGUF file; `name`: what it is called in requests;
    `adapters`: (name, folder) of those that come with it; `card_sampling`: (parameter, value) that its card
    recommends.

    A name says nothing of what is in there: `tokenizer_digest` and the checkpoint's do.
    """

    path: Path
    name: str
    adapters: tuple[tuple[str, Path], ...] = ()
    card_sampling: tuple[tuple[str, float], ...] = ()

    def tokenizer_digest(self) -> str:
        """32 hex digits, of all files that text becomes ids by, and ids text.

        Raises InvalidRequest for a GGUF file that is damaged.
        """
        gguf = find_gguf(self.path)
        if gguf is not None:
            return gguf_tokenizer_digest(gguf)
        digest = blake2b(digest_size=DIGEST_BYTES)
        for name in TOKENIZER_FILES:
            file = self.path / name
            content = file.read_bytes() if file.is_file() else b""
            digest.update(blake2b(content, digest_size=DIGEST_BYTES).digest())
        return digest.hexdigest()


def called(model: str) -> str:
    """Return what `model` is called by itself, whether its files are here or not."""
    if not model:
        return DEFAULT_MODEL_NAME if find_default_model() is not None else DEMO_MODEL_NAME
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.is_file() else model


def resolve_model(model: str, served_name: str = "", progress: FetchProgress | None = None) -> ModelSource:
    """The model's directory or file, and its name: `served_name` if there is one, else what it is called by
    itself.

    `model`: "" = the default model where it is installed, else the demo model that is shipped; any other one
    is a local directory or GGUF file, else a model that was pulled, else the id of a model on the hub, with
    @REVISION behind it where one is meant. A directory that holds one GGUF
    file, and no config.json, stands for that file. Fetches the model from the hub unless its files are in the
    hub's local cache, and tells `progress`. Raises NotFound when there is no such model, Unavailable when it
    could not be fetched, InvalidRequest where it is not clear which is meant, ChecksumMismatch where the
    default one is not the known one.
    """
    if not model:
        default = find_default_model()
        if default is not None:
            file = check_default_model(default)
            return ModelSource(file, served_name or called(model), DEFAULT_ADAPTERS, DEFAULT_SAMPLING)
        if not DEMO_MODEL.is_dir():
            raise NotFound(f"the demo model is not in {DEMO_MODEL}; name a model directory or a hub id")
        return ModelSource(DEMO_MODEL, served_name or called(model))
    path = Path(model).expanduser()
    if path.is_dir() or path.is_file():
        return ModelSource(find_gguf(path) or path, served_name or called(model))
    kept = find_kept(model)
    if kept is not None:
        return ModelSource(find_gguf(kept.folder) or kept.folder, served_name or model)
    if not _HUB_ID.fullmatch(model):
        raise NotFound(
            f"there is no directory and no file {model!r}, and no such model is kept (`penstock list`); "
            "give a model directory, a GGUF file or a hub id like org/name"
        )
    return ModelSource(fetch_model(model, progress), served_name or model)
