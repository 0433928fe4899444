"""One route of the edge: a method, a path, what answers it and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from services.gateway.http.openapi.operation import Operation

Handler = Callable[..., Awaitable[web.StreamResponse]]
LAST_NAME = "model"
"""The one name that may have slashes in it, as names of models do."""


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has names in braces; the handler gets what stands in their places, in order."""

    method: str
    path: str
    handler: Handler
    operation: Operation
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        parts = re.split(r"\{(\w+)\}", self.path)
        names = ["(.+)" if name == LAST_NAME else "([^/]+)" for name in parts[1::2]]
        texts = [re.escape(part) for part in parts[::2]]
        whole = texts[0] + "".join(name + text for name, text in zip(names, texts[1:], strict=True))
        object.__setattr__(self, "pattern", re.compile(whole))
