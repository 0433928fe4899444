"""The subjects of the bus.

penstock.<role>.<instance>              directed: everything sent to one instance
penstock.fleet.<role>.<instance>        heartbeats
penstock.cancel                         cancel for everyone, the backstop of directed cancels
penstock.kv.<instance>.<incarnation>    KV chunks, on connections of their own
"""

from __future__ import annotations

FLEET_ALL = "penstock.fleet.*.*"
CANCEL_ALL = "penstock.cancel"


def inbox(role: str, instance: str) -> str:
    return f"penstock.{role}.{instance}"


def fleet(role: str, instance: str) -> str:
    return f"penstock.fleet.{role}.{instance}"


def kv(instance: str, incarnation: int) -> str:
    return f"penstock.kv.{instance}.{incarnation}"


def role_of_subject(subject: str) -> str:
    """The role a directed subject speaks to, for errors that name the hop."""
    parts = subject.split(".")
    return parts[1] if len(parts) > 1 else subject
