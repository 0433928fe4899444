"""Check whether the models can be served, before anything is started. Loads no weights, and no torch.

A model that is missing something would otherwise be found out by four processes, four times each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.launcher.options import StackOptions
from shared.config.settings import Setting, Settings
from shared.engine.loading.adapter_config import load_adapter_config
from shared.engine.loading.config import load_model_config
from shared.engine.loading.model_config import ModelConfig
from shared.engine.loading.weight_files import check_weight_files
from shared.errors import InvalidRequest, PenstockError
from shared.sampling.defaults import parse_default_sampling
from shared.text.default_model import DEFAULT_MODEL_NAME, is_missing
from shared.text.model_sampling import served_sampling
from shared.text.model_source import ModelSource, resolve_model
from shared.text.tokenizer import TextTokenizer


class ModelRefused(InvalidRequest):
    """A model, or a draft for it, that cannot be served."""


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model that can be served, as far as that can be seen without its weights."""

    path: Path
    config: ModelConfig
    vocabulary: Mapping[str, int]


def check_models(
    options: StackOptions, tell: Callable[[str], None]
) -> tuple[CheckedModel, CheckedModel | None]:
    """Return the model, and the draft where there is one. Raises ModelRefused with one sentence. A model of
    the hub is fetched unless the local cache has it; how far that is goes to `tell`."""
    if not options.model and is_missing():
        tell(
            f"{DEFAULT_MODEL_NAME} is not installed (`make setup` fetches it): the small demo model is served"
        )
    target, *_ = [
        _check_model("model", each.model, options.settings, "decode", tell) for each in options.models
    ]
    for adapter in options.adapters:
        _check_adapter(adapter.name, Path(adapter.folder))
    if not options.draft or not options.counts["speculator"]:
        return target, None
    draft = _check_model("draft", options.draft, options.settings, "speculator", tell)
    difference = _difference(target.vocabulary, draft.vocabulary)
    if difference:
        raise ModelRefused(
            f"the draft {options.draft} has another tokenizer than the model "
            f"{options.model or 'that is served by default'}: {difference}; "
            "take a draft of the same family, or --draft none"
        )
    return target, draft


def _check_adapter(name: str, folder: Path) -> None:
    """Check the adapter's configuration; whether it is one of the model, workers say."""
    try:
        load_adapter_config(folder)
    except PenstockError as error:
        raise ModelRefused(f"the adapter {name} cannot be served: {error.message}") from error


def _check_model(
    kind: str, name: str, settings: Mapping[str, Settings], role: str, tell: Callable[[str], None]
) -> CheckedModel:
    def fetched(done: int, total: int) -> None:
        far = f": {done / 1e6:.1f} of {total / 1e6:.1f} MB" if done else ""
        tell(f"fetching {name} from the hub{far}")

    called = f"{kind} {name}" if name else f"{kind} that is served by default"
    try:
        source = resolve_model(name, progress=fetched)
        folder = source.path
        config = load_model_config(folder, str(settings[role]["dtype"].value))
        check_weight_files(folder)
        if role == "decode":  # which tells it to gateways
            _check_sampling(source, settings[role]["default_sampling"])
        return CheckedModel(folder, config, TextTokenizer.load(folder).vocabulary())
    except PenstockError as error:
        raise ModelRefused(f"the {called} cannot be served: {error.message}") from error
    except OSError as error:
        path = Path(error.filename or name)
        raise ModelRefused(
            f"the {called} cannot be served: {path} cannot be read ({error.strerror})"
        ) from error


def _check_sampling(source: ModelSource, words: Setting) -> None:
    """Check the model's own sampling; what is wrong in the configuration is a problem of its settings."""
    try:
        parse_default_sampling(words.value, words.source)
    except InvalidRequest:
        return
    served_sampling(source, words.value)


def _difference(target: Mapping[str, int], draft: Mapping[str, int]) -> str:
    """An id that stands for two tokens; "" where there is none. One of the two may know more ids: a draft
    that has no token for an id makes no guess."""
    tokens = {token_id: token for token, token_id in target.items()}
    for token, token_id in sorted(draft.items(), key=lambda item: item[1]):
        if tokens.get(token_id, token) != token:
            return f"id {token_id} is {tokens[token_id]!r} there and {token!r} here"
    return ""
