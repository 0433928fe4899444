"""A share on the bus: what workers are told of a tenant, and what they refuse."""

from __future__ import annotations

import pytest

from shared.errors import InvalidRequest
from shared.fairness.share import (
    MAX_TENANT_CHARS,
    OPEN_SHARE,
    TenantShare,
    answer_scope,
    tenant_digest,
)
from shared.files.api_key_file import MAX_WEIGHT

KEYS = ("", "ab" * 32)


def test_workers_can_tell_tenants_apart_and_not_what_they_are_called() -> None:
    digests = {tenant_digest(tenant, key) for tenant in ("acme", "acme2") for key in KEYS}
    assert len(digests) == 4
    assert not any("acme" in digest for digest in digests)
    assert all(len(digest) <= MAX_TENANT_CHARS for digest in digests)


def test_every_gateway_of_a_fleet_names_a_tenant_alike_and_the_open_edge_has_no_name() -> None:
    assert tenant_digest("acme", KEYS[1]) == tenant_digest("acme", KEYS[1])
    assert tenant_digest("", KEYS[1]) == OPEN_SHARE.tenant


@pytest.mark.parametrize("weight", [1, MAX_WEIGHT])
def test_weights_up_to_the_greatest_are_taken(weight: int) -> None:
    TenantShare("t" * MAX_TENANT_CHARS, weight).check()


@pytest.mark.parametrize("weight", [0, -1, MAX_WEIGHT + 1])
def test_other_weights_are_refused_by_what_they_are(weight: int) -> None:
    with pytest.raises(InvalidRequest, match=f"the weight of a share is {weight}"):
        TenantShare("t", weight).check()


def test_a_tenants_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=f"has {MAX_TENANT_CHARS + 1} characters"):
        TenantShare("t" * (MAX_TENANT_CHARS + 1)).check()


def test_answers_have_another_name_for_each_tenant_salt_and_key_and_one_at_the_open_edge() -> None:
    scopes = {answer_scope(scope, key) for scope in ("", "acme", "acme\0salt", "\0salt") for key in KEYS}
    assert len(scopes) == 8
    assert all(0 < len(scope) <= MAX_TENANT_CHARS for scope in scopes)
    assert answer_scope("acme", KEYS[1]) not in (tenant_digest("acme", KEYS[1]), answer_scope("acme", ""))
