"""A call has the name that its client gives it, where that can be used, and ours."""

from __future__ import annotations

import pytest

from services.gateway.scope.call_identity import (
    MAX_CLIENT_ID_CHARS,
    CallIdentity,
    call_identity,
    note_identity,
)
from tests.support.collector import CALLER


@pytest.mark.parametrize(
    "name", ["a", "550e8400-e29b-41d4-a716-446655440000", "a.b_c:d/e+f=g@h", "x" * MAX_CLIENT_ID_CHARS]
)
def test_a_clients_name_of_its_call_is_shown(name: str) -> None:
    assert note_identity("chat", [name], []).shown_id("gateway-0") == name


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["x" * (MAX_CLIENT_ID_CHARS + 1)],
        ["two words"],
        ["new\nline"],
        ["line\n"],
        ["ümlaut"],
        ['"'],
        ["a", "b"],
        [b"bytes"],
    ],
)
def test_a_name_that_cannot_be_used_is_replaced_by_ours(values: list[str | bytes]) -> None:
    identity = note_identity("chat", values, [])
    assert identity.client_id == ""
    assert identity.shown_id("gateway-0") == identity.request_id("gateway-0")
    assert identity.shown_id("gateway-0").startswith("gateway-0.")


def test_the_requests_of_a_call_have_ids_of_their_own_of_which_the_first_is_the_calls() -> None:
    identity = CallIdentity()
    ids = {identity.request_id("gateway-0", choice) for choice in range(3)}
    assert len(ids) == 3
    assert identity.request_id("gateway-0") in ids


def test_a_call_has_its_clients_span() -> None:
    assert note_identity("chat", [], [CALLER.header]).parent == CALLER
    assert call_identity().parent == CALLER


def test_a_bad_trace_counts_as_none() -> None:
    identity = note_identity("chat", [], [f"{CALLER.header}-more"])
    assert identity.parent is None
