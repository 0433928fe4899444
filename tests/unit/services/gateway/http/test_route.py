"""The path of a route: names in braces, which stand for one part, or for a model's name with its slashes."""

from __future__ import annotations

import pytest

from services.gateway.http.openapi import operations
from services.gateway.http.pages import Pages
from services.gateway.http.route import Route


@pytest.mark.parametrize(
    ("path", "asked", "names"),
    [
        ("/a/{corpus}/search", "/a/docs/search", ("docs",)),
        ("/a/{corpus}/search", "/a/docs/more/search", None),
        ("/a/{corpus}/search", "/a//search", None),
        ("/v1/models/{model}", "/v1/models/org/name:adapter", ("org/name:adapter",)),
        ("/openapi.json", "/openapiXjson", None),
        ("/", "/", ()),
    ],
)
def test_a_path_is_met_by_what_has_its_parts(path: str, asked: str, names: tuple[str, ...] | None) -> None:
    found = Route("GET", path, Pages.health, operations.HEALTH).pattern.fullmatch(asked)
    assert (None if found is None else found.groups()) == names
