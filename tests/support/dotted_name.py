"""Names as they are written in a source: `ast.unparse` takes a hundred times as long for each."""

from __future__ import annotations

import ast


def dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as it is written, empty where it begins with something else than a name."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(attributes))) if isinstance(node, ast.Name) else ""
