"""The roles: which services there are, which of them a request needs, and whose time a phase is."""

from __future__ import annotations

from collections.abc import Mapping

ROLES = ("gateway", "tokenizer", "retriever", "prefill", "decode", "speculator", "detokenizer")
"""The roles in the order in which a stack starts them; each is `services/<role>`."""
OPTIONAL_ROLES = ("retriever", "speculator")
"""A stack may have none of these."""
ROUTED_ROLES = ("decode", "prefill", "detokenizer")
"""Every request is placed on one instance of each; a missing role is named in this order."""
REQUIRED_ROLES = ("tokenizer", *ROUTED_ROLES)
"""The roles that a gateway must see ready before it serves."""
ENGINE_ROLES = ("prefill", "decode", "speculator")
"""The roles that run an engine: they compute all the time and share the cores of a machine."""
TARGET_ROLES = ("decode", "prefill")
"""The roles whose engine serves the model that clients ask for; a speculator has one of its own."""

FOLLOWED_ROLES: Mapping[str, tuple[str, ...]] = {
    "gateway": ROLES,
    "tokenizer": ("gateway",),
    "retriever": ("gateway",),
    "prefill": ("gateway", "decode"),
    "decode": ("gateway", "prefill", "speculator"),
    "speculator": ("gateway", "decode"),
    "detokenizer": ("gateway",),
}
"""The roles whose heartbeats a role hears: a gateway routes to all, all keep its leases and deadlines, and
workers also hear those with whom their work ends. To hear everybody costs each process at rest by the fleet's
size."""


def inner_instance(role: str, outer: str) -> str:
    """Return the name of the instance of `role` that is in the process of the instance `outer`. Like all
    names it begins with the role, and there is nothing behind that with a dash in it."""
    return f"{role}-{outer.replace('-', '')}"


_HOPS = {
    "client": "client",
    "retrieve": "retriever",
    "cache": "retriever",
    "tokenize": "tokenizer",
    "prefill": "prefill",
    "detokenize": "detokenizer",
    "bus": "bus",
    "kv": "decode",
    "decode": "decode",
}


def hop_of_phase(phase: str) -> str:
    """Return where a request is in `phase`: a role, or client or bus on the way between them.

    The first part of the phase's name decides; all that are not listed are the gateway's own.
    """
    return _HOPS.get(phase.split(".", 1)[0], "gateway")
