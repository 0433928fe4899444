"""The virtual model names of a stack, as its gateways will read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from shared.config.settings import Setting
from shared.errors import InvalidRequest
from shared.files.virtual_model import VirtualModel
from shared.files.virtual_model_file import load_virtual_models


def virtual_models_of(setting: Setting) -> tuple[VirtualModel, ...]:
    """Return those of the file that the setting names, none where it cannot be used or names none."""
    try:
        return load_virtual_models(Path(setting.value)) if setting.value else ()
    except InvalidRequest:
        return ()


def virtual_model_problems(setting: Setting, served: Collection[str]) -> Iterator[str]:
    """One sentence for a file that cannot be used, and for each name that is one of the `served` models."""
    if not setting.value:
        return
    try:
        models = load_virtual_models(Path(setting.value))
    except InvalidRequest as error:
        yield f"{setting.source}: {error.message}"
        return
    for model in models:
        if model.name in served:
            yield (
                f"{setting.source}: [{model.name}] has the name of a model that is served, which nobody "
                "could ask for any more; give the virtual one another name"
            )


def described_virtual_model(model: VirtualModel) -> str:
    """Return its rules and fallbacks in a line."""
    rules = ", ".join(
        f"{rule.name} → {' | '.join(_share_words(each.model, each.share, len(rule.to)) for each in rule.to)}"
        for rule in model.rules
    )
    fallback = f"; falls back to {', '.join(model.fallback)}" if model.fallback else ""
    return f"{rules}{fallback}"


def _share_words(model: str, share: float, models: int) -> str:
    return model if models == 1 else f"{model} {share:g}"
