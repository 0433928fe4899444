"""Decide who may say what on the bus: one table, from which the users of a nats-server are made.

A subject names the message on it and its sender (`shared.bus.subjects`), so the server itself refuses a
message that its sender has no business to send, and a receiver believes no message that is not what its
subject says. All users are in one account: accounts separate subjects, and here nearly everybody speaks with
everybody, so each pair would need an export and an import that say what a permission says in one line.

A user is an instance where the instances are known beforehand, as `penstock up` knows its own. Where they are
not, it is a role: then the server holds the roles apart, and not the instances of a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shared import messages
from shared.bus.subjects import (
    ANY,
    CANCEL_ALL,
    FLEET_ALL,
    HEARTBEAT_REQUEST_ALL,
    answers,
    everything_at,
    fleet,
    heartbeat_request,
    inbox,
    kv,
    subject_of,
)
from shared.messages import Message
from shared.roles import ENGINE_ROLES, FOLLOWED_ROLES, ROLES

OPERATOR = "operator"
"""The user that runs `penstock status`, `audit` and `up` itself."""

_KV_AGREEMENT = (messages.KvAbort, messages.KvAbortAck)
_KV_TO_SENDER = (messages.KvGrant, messages.KvCredit, messages.KvMissing, messages.KvReceived, *_KV_AGREEMENT)

MAY_SEND: Mapping[str, Mapping[str, tuple[type[Message], ...]]] = {
    "gateway": {
        "tokenizer": (messages.Tokenize, messages.Detokenize, messages.GetTokenBytes, messages.Cancel),
        "retriever": (
            messages.Retrieve,
            messages.Embed,
            messages.RerankTexts,
            messages.CiteAnswer,
            messages.LookUpResponse,
            messages.KeepResponse,
            messages.Cancel,
        ),
        "prefill": (messages.Prefill, messages.Warm, messages.Cancel),
        "decode": (
            messages.Reserve,
            messages.LivenessCheck,
            messages.TakeOver,
            messages.Warm,
            messages.Cancel,
        ),
        "speculator": (messages.Cancel,),
        "detokenizer": (messages.Open, messages.AllowSuccessor, messages.Cancel),
        "gateway": (
            messages.ClientCancel,
            messages.BeginKeyUses,
            messages.CountKeyRefusals,
            messages.SettleKeyUse,
            messages.ClaimKey,
            messages.LeaveKey,
            messages.ConsoleRequest,
            messages.FlagLogRequest,
        ),
    },
    "tokenizer": {},
    "retriever": {"gateway": (messages.FoundFirst,)},
    "prefill": {
        "gateway": (messages.Lost, messages.PromptLogprobs),
        "prefill": (
            messages.LendPrefix,
            messages.KvProbe,
            messages.KvReady,
            messages.KvDone,
            *_KV_TO_SENDER,
        ),
        "decode": (messages.KvReady, messages.KvDone, *_KV_AGREEMENT),
        "detokenizer": (messages.Tokens,),
    },
    "decode": {
        "gateway": (messages.Lost, messages.PromptLogprobs, messages.HandOver, messages.HandOverDone),
        "prefill": (messages.KvProbe, *_KV_TO_SENDER, messages.GrammarTried),
        "decode": (messages.KvDone, *_KV_TO_SENDER),
        "speculator": (messages.DraftOpen, messages.DraftCommit, messages.DraftClose),
        "detokenizer": (messages.Tokens,),
    },
    "speculator": {"decode": (messages.DraftBlock, messages.DraftResync)},
    "detokenizer": {"gateway": (messages.Text, messages.Lost)},
    OPERATOR: {
        **dict.fromkeys(ROLES, (messages.AuditRequest, messages.Drain)),
        "gateway": (
            messages.AuditRequest,
            messages.AccountRequest,
            messages.UsageRequest,
            messages.ChangeFlag,
            messages.FlagLogRequest,
            messages.FlagTrafficRequest,
            messages.Drain,
        ),
    },
}
"""Sender → receiver → messages. Beside these, every role sends heartbeats as itself, asks others for theirs,
asks who has a prefix cache for a snapshot of it, gateways broadcast cancels, and prefill and decode send KV
chunks to each other. Answers are not listed: who was asked may answer, once, on the reply subject of the
question."""

ANSWER_WITHIN = "10m"
"""The server remembers so long who may be answered: beyond the deadlines of what is asked."""


@dataclass(frozen=True, slots=True)
class BusUser:
    """`publish` and `subscribe` are the subjects allowed; everything else is refused."""

    name: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool


def role_user(role: str, instance: str = ANY) -> BusUser:
    """The user of one instance, or of all instances of a role."""
    name = role if instance == ANY else instance
    publish = [subject_of(fleet(role, instance), messages.Heartbeat.__name__, instance)]
    publish += _sends(role, instance)
    publish += [
        subject_of(inbox(peer, ANY), messages.SnapshotRequest.__name__, instance) for peer in ENGINE_ROLES
    ]
    publish += _heartbeat_requests(instance)
    subscribe = [everything_at(inbox(role, instance)), f"{answers(name)}.>"]
    subscribe += [everything_at(heartbeat_request(role, instance)), everything_at(HEARTBEAT_REQUEST_ALL)]
    subscribe += [everything_at(fleet(followed, ANY)) for followed in FOLLOWED_ROLES[role]]
    subscribe += ["$SRV.*", f"$SRV.*.penstock-{role}", f"$SRV.*.penstock-{role}.*"]
    if role == "gateway":
        publish.append(subject_of(CANCEL_ALL, messages.Cancel.__name__, instance))
    else:
        subscribe.append(everything_at(CANCEL_ALL))
    if role in ("prefill", "decode"):
        publish.append(kv(ANY, ANY))
        subscribe.append(kv(instance, ANY))
    return BusUser(name, tuple(publish), tuple(subscribe), answers=True)


def operator_user() -> BusUser:
    """May see the fleet and ask it what it holds, with stock NATS tools too; is never asked itself."""
    return BusUser(
        OPERATOR,
        publish=(*_sends(OPERATOR, OPERATOR), *_heartbeat_requests(OPERATOR), "$SRV.>"),
        subscribe=(everything_at(FLEET_ALL), f"{answers(OPERATOR)}.>"),
        answers=False,
    )


def _sends(role: str, sender: str) -> list[str]:
    return [
        subject_of(inbox(receiver, ANY), message.__name__, sender)
        for receiver, allowed in MAY_SEND[role].items()
        for message in allowed
    ]


def _heartbeat_requests(sender: str) -> list[str]:
    return [subject_of(heartbeat_request(ANY, ANY), messages.HeartbeatRequest.__name__, sender)]


def may_publish(user: BusUser, subject: str) -> bool:
    """Return whether a server with the permissions of `user` takes a message of it to `subject`."""
    return any(_is_below(pattern.split("."), subject.split(".")) for pattern in user.publish)


def _is_below(pattern: list[str], subject: list[str]) -> bool:
    """Return whether a subject is one of those that a pattern means, by the rules of NATS."""
    for place, word in enumerate(pattern):
        if word == ">":
            return len(subject) > place
        if place >= len(subject) or word not in (ANY, subject[place]):
            return False
    return len(pattern) == len(subject)


def authorization(users: Iterable[tuple[BusUser, str]]) -> str:
    """The part of a nats-server's configuration that lets in these users, each with its password, and nobody
    else."""
    return "authorization: {{ users: [\n{}\n] }}".format("\n".join(_entry(*one) for one in users))


def _entry(user: BusUser, password: str) -> str:
    may_answer = f', allow_responses: {{ max: 1, expires: "{ANSWER_WITHIN}" }}' if user.answers else ""
    return (
        f'  {{ user: "{user.name}", password: "{password}", permissions: {{\n'
        f"    publish: {{ allow: [{_listed(user.publish)}] }}\n"
        f"    subscribe: {{ allow: [{_listed(user.subscribe)}] }}{may_answer} }} }}"
    )


def _listed(subjects: Iterable[str]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)
