"""The subjects of the bus.

An address says who is meant. What is sent there says in its subject also what it is and who sent it, so
that the server can refuse what the sender may not say (`shared.bus.permissions`):

    <address>.<Message>.<sender>

    penstock.<role>.<instance>              one instance: everything directed
    penstock.fleet.<role>.<instance>        the heartbeats of one instance
    penstock.heartbeat_request.<role>.<instance>  asks one instance for its heartbeat, "all.all" everyone
    penstock.cancel                         cancel for everyone, the backstop of directed cancels

KV chunks are no messages and have connections of their own: penstock.kv.<instance>.<incarnation>.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from shared.errors import NoListener
from shared.roles import ROLES

ANY = "*"
FLEET_ALL = "penstock.fleet.*.*"
CANCEL_ALL = "penstock.cancel"
HEARTBEAT_REQUEST_ALL = "penstock.heartbeat_request.all.all"
NOBODY = "-"
"""The sender of messages whose sender has no name: tools, and tests."""
MAX_SUBJECT_BYTES = 1024
"""The longest subject that is sent to: a server closes the connection of who sends a line of 4096 bytes."""
KNOWN_PLACES = 1024
"""The subjects that are remembered with what is known of them, those used last: a step's are those of the one
before."""
_PLACE = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
ANSWERS = "_INBOX"
"""The subject of answers: each user of a closed bus has a part of it that nobody else can read."""
AGAIN = "+"
"""The mark before the number of a repetition, in the last token of a reply subject."""


def inbox(role: str, instance: str) -> str:
    return f"penstock.{role}.{instance}"


def is_inbox(address: str) -> bool:
    """Return whether an address is one instance's, rather than one that several hear."""
    _, *place = address.split(".")
    return len(place) == 2 and place[0] in ROLES and ANY not in place


def fleet(role: str, instance: str) -> str:
    return f"penstock.fleet.{role}.{instance}"


def heartbeat_request(role: str, instance: str) -> str:
    return f"penstock.heartbeat_request.{role}.{instance}"


def kv(instance: str, incarnation: int | str) -> str:
    return f"penstock.kv.{instance}.{incarnation}"


def answers(user: str) -> str:
    """The prefix of the subjects on which `user` gets answers; "" is anybody on an open bus."""
    return f"{ANSWERS}.{user}" if user else ANSWERS


def repeated(reply: str, times: int) -> str:
    """Return the reply subject of an ask that has been sent `times` times already."""
    return f"{reply}{AGAIN}{times}" if times else reply


def ask_of(reply: str) -> str:
    """Return the reply subject that an ask had at first: what all its repetitions have in common."""
    place, dot, name = reply.rpartition(".")
    return f"{place}{dot}{name.partition(AGAIN)[0]}"


def subject_of(address: str, message: str, sender: str) -> str:
    """`message` is the name of its type."""
    return f"{address}.{message}.{sender}"


@lru_cache(KNOWN_PLACES)
def check_place(subject: str) -> None:
    """Raise NoListener for what is no place to send to: a name in a message may be anything."""
    if len(subject.encode(errors="replace")) > MAX_SUBJECT_BYTES or not _PLACE.fullmatch(subject):
        raise NoListener(f"nobody can be at {subject[:80]!r}; the name of an instance is wrong")


def everything_at(address: str) -> str:
    """Return what to subscribe to for all messages of an address."""
    return f"{address}.*.*"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claims of a subject about the message on it; the server has checked that its sender may say so."""

    address: str
    message: str
    sender: str

    @classmethod
    @lru_cache(KNOWN_PLACES)
    def of(cls, subject: str) -> Claim:
        parts = subject.rsplit(".", 2)
        return cls(*parts) if len(parts) == 3 else cls(subject, "", "")


def role_of_subject(subject: str) -> str:
    """The role a directed subject speaks to, for errors that name the hop."""
    parts = subject.split(".")
    return parts[1] if len(parts) > 1 else subject
