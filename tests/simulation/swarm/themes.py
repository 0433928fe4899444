"""What a seed is about: one that is about little has few parts, costs little, and reaches deep into that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.swarm.plan import LOSABLE, OFTEN_LOST, FaultKind

NEEDED = (
    *OFTEN_LOST,
    *(3 * ("Text", "Tokens")),
    *(2 * ("KvDone", "KvGrant", "KvChunk", "KvReceived", "Accepted")),
)
"""Without the next of these no client gets its next token: they are lost more often."""
ALL_KINDS = dict.fromkeys(FaultKind, 1) | {
    FaultKind.CRASH: 4,
    FaultKind.LOST: 6,
    FaultKind.LATE: 4,
    FaultKind.CUT: 3,
    FaultKind.PARTITION: 2,
    FaultKind.PAUSE: 2,
}


@dataclass(frozen=True, slots=True)
class Theme:
    """`weight`: how many seeds are about it, beside those of other themes. `most` and `least`: the workers of
    a role, 1 or 2 where it is not named. `kinds`: the faults that come, by how often; `at`: the roles that
    they come to, none: all of them. `losses`: the most messages that are lost beside them, each of one of
    `lost`. `slowness`: steps of engines take so many times as long, so that a call lasts long enough for
    something to come in the midst of it. `lasts_s`: calls begin, and faults come, within so much. `asks`:
    words of which one stands in the name of what is asked for; none: all of it. The other numbers are shares
    of seeds, of calls where they say so."""

    name: str
    weight: int
    calls: tuple[int, int] = (1, 4)
    most: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[FaultKind, int] = field(default_factory=lambda: ALL_KINDS)
    faults: tuple[int, int] = (1, 2)
    at: tuple[str, ...] = ()
    losses: int = 0
    lost: tuple[str, ...] = NEEDED
    slowness: tuple[float, ...] = (1.0, 1.0, 10.0)
    lasts_s: tuple[float, ...] = (0.3, 0.5, 1.0)
    asks: tuple[str, ...] = ()
    peaceful: float = 0.0
    roomy: float = 0.8
    narrow: float = 0.1
    answers_wait: float = 0.05
    hurried: float = 0.15
    leaving: float = 0.3
    reads_slowly: float = 0.2
    over_http: float = 0.5
    searches: float = 0.1
    keyed: float = 0.15
    metered: float = 0.25
    """Of calls, where there are keys: those that come with one that is limited."""
    two_gateways: float = 0.1
    rare: float = 0.1


THEMES = (
    Theme(
        "anything",
        5,
        calls=(2, 8),
        most={"decode": 3, "prefill": 3},
        faults=(1, 6),
        losses=3,
        lost=LOSABLE,
        slowness=(1.0, 1.0, 1.0, 10.0),
        lasts_s=(0.5, 1.0, 1.0, 3.0),
        peaceful=0.1,
        roomy=0.3,
        hurried=0.3,
        leaving=0.5,
        searches=0.3,
        keyed=0.35,
        two_gateways=0.2,
        rare=0.25,
    ),
    Theme("one message is lost", 5, calls=(1, 3), faults=(0, 0), losses=1, roomy=1.0, hurried=0.0, rare=0.0),
    Theme(
        "messages are lost",
        4,
        faults=(0, 1),
        kinds={FaultKind.LATE: 1, FaultKind.CUT: 2},
        losses=3,
        slowness=(10.0,),
        asks=("answer", "long", "tenant", "priority", "stop"),
        rare=0.0,
    ),
    Theme(
        "a text is lost with what prepares it",
        2,
        calls=(1, 3),
        faults=(0, 0),
        losses=1,
        lost=(
            *("Tokenize", "Tokenized", "Tokenized", "Tokenized", "Retrieve", "Retrieved", "Retrieved"),
            *("Accepted", "CiteAnswer", "AnswerCited"),
        ),
        slowness=(1.0,),
        asks=("text", "chat", "passages"),
        roomy=1.0,
        hurried=0.0,
        searches=0.5,
        rare=0.0,
    ),
    Theme(
        "a part of a transfer is lost",
        3,
        calls=(1, 3),
        faults=(0, 0),
        losses=1,
        lost=("KvDone", "KvDone", "KvGrant", "KvGrant", "KvReceived", "KvReceived", "KvChunk", "KvCredit"),
        slowness=(1.0,),
        roomy=1.0,
        hurried=0.0,
        leaving=0.0,
        reads_slowly=0.0,
        rare=0.0,
    ),
    Theme(
        "little time",
        4,
        calls=(1, 4),
        at=("detokenizer", "detokenizer", "prefill", "decode", "tokenizer", "gateway"),
        kinds={
            FaultKind.PAUSE: 4,
            FaultKind.PARTITION: 3,
            FaultKind.SLOW: 2,
            FaultKind.DEAF: 2,
            FaultKind.LATE: 2,
            FaultKind.CRASH: 2,
        },
        slowness=(1.0, 10.0, 30.0),
        peaceful=0.3,
        hurried=1.0,
        leaving=0.1,
        over_http=0.7,
    ),
    Theme(
        "clients leave",
        4,
        kinds={
            FaultKind.PARTITION: 4,
            FaultKind.PAUSE: 3,
            FaultKind.DEAF: 3,
            FaultKind.NATS_RESTART: 2,
            FaultKind.CUT: 1,
        },
        at=("detokenizer", "detokenizer", "prefill", "decode", "tokenizer", "gateway"),
        losses=2,
        lost=("Cancel", "CancelAck", "ClientCancel", "KvAbort", "KvAbortAck", "Lost"),
        slowness=(10.0,),
        lasts_s=(0.2, 0.4),
        asks=("very long", "long", "two choices"),
        peaceful=0.4,
        leaving=1.0,
        reads_slowly=0.4,
        keyed=0.3,
    ),
    Theme(
        "whose it is",
        5,
        calls=(3, 8),
        most={"decode": 1, "tokenizer": 1},
        kinds={
            FaultKind.KEY_TAKEN: 4,
            FaultKind.KEYS_SPOILT: 3,
            FaultKind.SLOW_SEARCH: 4,
            FaultKind.CRASH: 1,
            FaultKind.LOST: 2,
            FaultKind.LATE: 1,
        },
        slowness=(1.0,),
        lasts_s=(1.0, 4.0, 4.0),
        asks=("kept", "shared", "another end", "tenant", "passages", "short"),
        peaceful=0.5,
        hurried=0.0,
        leaving=0.2,
        reads_slowly=0.0,
        searches=0.5,
        keyed=1.0,
        two_gateways=0.4,
        rare=0.0,
    ),
    Theme(
        "nobody finds anything",
        3,
        calls=(1, 4),
        kinds={
            FaultKind.CRASH: 3,
            FaultKind.PAUSE: 2,
            FaultKind.PARTITION: 2,
            FaultKind.SLOW_SEARCH: 2,
        },
        at=("retriever",),
        slowness=(1.0,),
        asks=("passages",),
        hurried=0.3,
        leaving=0.1,
        searches=1.0,
        keyed=0.4,
        rare=0.0,
    ),
    Theme(
        "workers move",
        5,
        calls=(1, 4),
        most={"decode": 3},
        kinds={
            FaultKind.DRAIN: 5,
            FaultKind.CRASH: 5,
            FaultKind.RESETTLED: 2,
            FaultKind.NO_MEMORY: 1,
            FaultKind.NO_TRIALS: 1,
            FaultKind.CLOCK_SET: 1,
            FaultKind.JOIN: 1,
            FaultKind.DROPPED: 2,
            FaultKind.CUT: 2,
            FaultKind.NATS_RESTART: 1,
        },
        faults=(1, 3),
        losses=1,
        lost=("Cancel", "CancelAck", "Open", "Accepted", "HandOver", "Successor", "HandOverDone"),
        slowness=(10.0, 10.0, 30.0),
        over_http=0.3,
        roomy=0.6,
    ),
    Theme(
        "a decode worker drains",
        2,
        calls=(1, 4),
        most={"decode": 3},
        least={"decode": 2},
        kinds={FaultKind.DRAIN: 3, FaultKind.RESETTLED: 1},
        at=("decode",),
        faults=(1, 1),
        slowness=(10.0, 30.0),
        lasts_s=(0.3,),
        asks=("answer", "long", "choices", "tenant"),
        leaving=0.0,
        rare=0.0,
    ),
    Theme(
        "a crowd",
        3,
        calls=(4, 8),
        most={"tokenizer": 1, "detokenizer": 1},
        kinds={
            FaultKind.DISK_FULL: 4,
            FaultKind.NO_TRIALS: 3,
            FaultKind.LOST: 2,
            FaultKind.CRASH: 1,
            FaultKind.DRAIN: 1,
        },
        faults=(1, 1),
        slowness=(1.0, 3.0),
        lasts_s=(0.05, 0.2),
        peaceful=0.5,
        roomy=0.3,
        narrow=0.6,
        hurried=0.2,
        leaving=0.1,
        keyed=0.3,
        rare=0.3,
    ),
    Theme(
        "too much for one engine",
        2,
        calls=(3, 5),
        most={"tokenizer": 1, "detokenizer": 1, "prefill": 1, "decode": 1},
        kinds={FaultKind.DISK_FULL: 2, FaultKind.DRAIN: 1, FaultKind.CRASH: 1},
        faults=(1, 1),
        slowness=(1.0,),
        lasts_s=(0.1,),
        asks=("long", "greedy", "schema", "pattern"),
        peaceful=0.6,
        roomy=0.0,
        hurried=0.0,
        leaving=0.1,
        rare=0.0,
    ),
    Theme(
        "one is silent",
        2,
        calls=(2, 4),
        least={"tokenizer": 2, "detokenizer": 2, "prefill": 2, "decode": 2},
        kinds={FaultKind.PAUSE: 1, FaultKind.PARTITION: 1},
        faults=(1, 1),
        slowness=(1.0,),
        lasts_s=(5.0,),
        roomy=1.0,
        hurried=0.0,
        leaving=0.0,
        reads_slowly=0.0,
        rare=0.0,
    ),
    Theme(
        "a gateway goes for good",
        2,
        calls=(1, 3),
        faults=(0, 0),
        slowness=(60.0,),
        lasts_s=(0.3,),
        asks=("very long", "short"),
        peaceful=0.3,
        roomy=1.0,
        hurried=0.0,
        leaving=0.0,
        reads_slowly=0.0,
        two_gateways=1.0,
        rare=0.0,
    ),
)
SILENT, GOES = "one is silent", "a gateway goes for good"
"""The themes whose one fault is drawn by hand: it comes at once, and lasts."""
