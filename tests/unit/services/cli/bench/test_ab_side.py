"""A side of a comparison is a server that is there, or a stack that is started, maybe of another commit."""

from __future__ import annotations

import pytest

from services.cli.bench.ab_side import AbSide
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "serve", "up", "commit"),
    [
        ("http://127.0.0.1:8000", ("--url", "http://127.0.0.1:8000"), None, ""),
        ("127.0.0.1:50051", ("--grpc", "127.0.0.1:50051"), None, ""),
        ("--url http://a --model 'my model'", ("--url", "http://a", "--model", "my model"), None, ""),
        ("up", (), (), ""),
        ("up --decode 2", (), ("--decode", "2"), ""),
        ("commit:HEAD~3", (), (), "HEAD~3"),
        ("commit:1a2b up --model 'my model'", (), ("--model", "my model"), "1a2b"),
    ],
)
def test_a_side_is_read(text: str, serve: tuple[str, ...], up: tuple[str, ...] | None, commit: str) -> None:
    assert AbSide.read(text) == AbSide(text, serve, up, commit)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a side is empty"),
        ("up --model 'a", "quotes that do not match"),
        ("up -d", "leave out -d"),
        ("commit:HEAD down", "behind commit:HEAD stands nothing, or up and its options"),
    ],
)
def test_what_is_no_side_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        AbSide.read(text)
