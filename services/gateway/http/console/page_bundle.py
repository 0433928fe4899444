"""Put a page with its styles and scripts into one document, so that a browser asks once before it shows it.

The files stay as they are written: modules that import each other, and sheets that a page links. A module
becomes a function that returns what it exports, and the policy names the digests of what stands inside.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

FILES = "/console/files/"
_SHEET = re.compile(rf'\s*<link rel="stylesheet" href="{FILES}([\w.]+)">')
_SCRIPT = re.compile(rf'<script type="module" src="{FILES}([\w.]+)"></script>')
_IMPORT = re.compile(r'^import \{([\w, ]+)\} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|class|function\*?) (\w+))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PageBundle:
    """`script_digest` and `style_digest` are as a policy (`Content-Security-Policy`) writes them."""

    html: bytes
    script_digest: str
    style_digest: str


def bundle_page(html: str, files: Mapping[str, str]) -> PageBundle:
    """Return the page with what it names inside. Raises KeyError for a file that is not there."""
    style = "\n".join(files[name] for name in _SHEET.findall(html))
    (entry,) = _SCRIPT.findall(html)
    script = bundle_scripts(entry, files)
    html = _SHEET.sub("", html)
    html = html.replace("</head>", f"  <style>{style}</style>\n  </head>")
    html = _SCRIPT.sub(lambda _: f'<script type="module">{script}</script>', html)
    return PageBundle(html.encode(), _digest(script), _digest(style))


def bundle_scripts(entry: str, files: Mapping[str, str]) -> str:
    """Return one script that does what the module `entry` does with all that it imports."""
    names: list[str] = []

    def add(name: str) -> None:
        if name not in names:
            for _, imported in _IMPORT.findall(files[name]):
                add(imported)
            names.append(name)

    add(entry)
    return "\n".join(_as_function(name, files[name]) for name in names)


def _as_function(name: str, source: str) -> str:
    exported = ", ".join(found for _, found in _EXPORT.findall(source))
    body = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = {_variable(found[2])};", source)
    body = _EXPORT.sub(lambda found: found[1], body)
    return f"const {_variable(name)} = (() => {{\n{body}return {{ {exported} }};\n}})();"


def _variable(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
