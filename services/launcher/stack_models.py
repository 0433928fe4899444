"""The models of a stack: those of the command line, else those of [models] in the configuration file."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.config.config_file import MODELS_TABLE, ConfigFile
from shared.config.fields import PathRule
from shared.config.settings import Setting, SourceKind
from shared.text.model_source import called

MAX_MODELS = 8
"""The most models of a stack: each has processes of its own in four roles, and its weights in memory."""

MODEL_VARIABLE = "PENSTOCK_MODEL"
_NAME = re.compile(r"[\w.:@/-]{1,128}")
_PATH_STARTS = ("/", ".", "~")


class StackModel(NamedTuple):
    """`name`: what clients ask for, "" for what the model is called by itself; `model`: a folder, a file or a
    name; `source`: the option or line that says so."""

    name: str
    model: str
    source: str

    @property
    def served_name(self) -> str:
        return self.name or called(self.model)


def said_models(
    parser: argparse.ArgumentParser, texts: Sequence[str], file: ConfigFile, environ: Mapping[str, str]
) -> tuple[StackModel, ...]:
    """Return the models that are said as [NAME=]MODEL or in [models]; none where a setting says which."""
    if texts:
        return tuple(_of_option(parser, text) for text in texts)
    if environ.get(MODEL_VARIABLE):
        return ()
    return tuple(
        StackModel(name, str(file.value(model, PathRule.IF_THERE)), file.place(MODELS_TABLE, name))
        for name, model in file.table(MODELS_TABLE).items()
    )


def file_problems(file: ConfigFile, model: Setting) -> Iterator[str]:
    """One sentence for everything that is wrong with the table [models]. `model` is the setting of that
    name."""
    for name, named in file.table(MODELS_TABLE).items():
        if not isinstance(named, str) or not named:
            yield (
                f"{file.place(MODELS_TABLE, name)}: [{MODELS_TABLE}] {name} is {named!r}; write a folder, a "
                "file or the name of a model"
            )
    if file.table(MODELS_TABLE) and model.kind is SourceKind.FILE:
        yield (
            f"{model.source}: model is said beside [{MODELS_TABLE}]; say there what is served, and leave "
            "model out"
        )


def naming_problems(
    models: Sequence[StackModel],
    served_name: Setting,
    default_model: Setting,
    virtual_names: Collection[str] = (),
) -> Iterator[str]:
    """One sentence for every reason why clients could not ask for each of the models."""
    if len(models) > MAX_MODELS:
        yield f"{len(models)} models are named: a stack serves at most {MAX_MODELS}; take some of them away"
    for each in models:
        if each.name and not _NAME.fullmatch(each.name):
            yield (
                f"{each.source}: the model's name {each.name!r} is not one that clients can ask for; take 1 "
                "to 128 letters, digits and any of . : @ / _ -"
            )
    if len(models) > 1:
        yield from _problems_of_several(models, served_name, default_model, virtual_names)


def _problems_of_several(
    models: Sequence[StackModel],
    served_name: Setting,
    default_model: Setting,
    virtual_names: Collection[str],
) -> Iterator[str]:
    names = [each.served_name for each in models]
    for name, count in Counter(names).items():
        if count > 1:
            sources = ", ".join(dict.fromkeys(each.source for each in models if each.served_name == name))
            yield (
                f"{sources}: {count} models are called {name!r}; tell them apart as NAME=MODEL, or under "
                f"[{MODELS_TABLE}]"
            )
    if served_name.said:
        yield (
            f"{served_name.source}: served_name is the name of one model and {len(models)} are served; write "
            f"NAME=MODEL, or NAME = MODEL under [{MODELS_TABLE}]"
        )
    if default_model.said and default_model.value not in ("", *names, *virtual_names):
        yield (
            f"{default_model.source}: default_model is {default_model.value!r}, and the stack serves "
            f"{', '.join(names)}; name one of them"
        )


def _of_option(parser: argparse.ArgumentParser, text: str) -> StackModel:
    name, equals, model = text.partition("=")
    if not equals or text.startswith(_PATH_STARTS) or Path(text).exists():
        name, model = "", text
    elif not name or not model:
        parser.error(f"--model {text} is not [NAME=]MODEL: write a name, =, and a folder, a file or a name")
    return StackModel(name, there(parser, "--model", model), "--model")


def there(parser: argparse.ArgumentParser, option: str, model: str) -> str:
    """A folder or file as an absolute path, anything else as the name that it may be."""
    path = Path(model).expanduser()
    if model and path.exists():
        return str(path.resolve())
    if model.startswith(_PATH_STARTS):
        parser.error(f"{option} {model} is not there: give a model directory or a GGUF file")
    return model
