"""YAML as libyaml reads it, which takes a tenth of the time of a parser in Python."""

from __future__ import annotations

from typing import Any

import yaml

LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def yaml_documents(text: str) -> list[Any]:
    """Return the documents that stand one behind the other in `text`."""
    return list(yaml.load_all(text, Loader=LOADER))


def yaml_document(text: str) -> Any:
    """Return the one document of `text`."""
    return yaml.load(text, Loader=LOADER)
