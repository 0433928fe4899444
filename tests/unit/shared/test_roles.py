"""The lists of roles agree with each other and with the services there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.roles import (
    ENGINE_ROLES,
    OPTIONAL_ROLES,
    REQUIRED_ROLES,
    ROLES,
    ROUTED_ROLES,
    TARGET_ROLES,
    hop_of_phase,
)

SERVICES = Path(__file__).resolve().parents[3] / "services"


def test_every_role_is_a_service_and_every_service_with_a_configuration_is_a_role() -> None:
    assert sorted(path.parent.name for path in SERVICES.glob("*/config.py")) == sorted(ROLES)
    assert all((SERVICES / role / "__main__.py").is_file() for role in ROLES)


def test_every_list_is_part_of_the_roles_and_what_is_required_is_not_optional() -> None:
    for roles in (OPTIONAL_ROLES, ROUTED_ROLES, REQUIRED_ROLES, ENGINE_ROLES, TARGET_ROLES):
        assert set(roles) <= set(ROLES)
    assert set(REQUIRED_ROLES).isdisjoint(OPTIONAL_ROLES)
    assert set(TARGET_ROLES) <= set(ENGINE_ROLES)


@pytest.mark.parametrize(
    ("phase", "hop"),
    [
        ("client", "client"),
        ("admit", "gateway"),
        ("retrieve", "retriever"),
        ("tokenize", "tokenizer"),
        ("route", "gateway"),
        ("prefill.queue", "prefill"),
        ("prefill.compute", "prefill"),
        ("detokenize", "detokenizer"),
        ("bus", "bus"),
        ("deliver", "gateway"),
        ("kv.transfer", "decode"),
        ("decode.queue", "decode"),
        ("decode", "decode"),
        ("finish", "gateway"),
    ],
)
def test_a_phase_is_the_time_of_one_hop(phase: str, hop: str) -> None:
    assert hop_of_phase(phase) == hop
