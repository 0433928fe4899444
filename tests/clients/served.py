"""Where the models are that other people's programs use, and what they are called."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any, Self

ASK_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    model: str
    embedder: str

    @classmethod
    def at(cls, url: str) -> Self:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=ASK_TIMEOUT_S) as response:
            model, embedder = (one["id"] for one in json.loads(response.read())["data"])
        return cls(url, model, embedder)

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """What the edge itself answers, to compare."""
        asked = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps({**body, "model": self.model}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=ASK_TIMEOUT_S) as response:
            return json.loads(response.read())
