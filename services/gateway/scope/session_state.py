"""The state of a session and the ways in which it changes. Pure: no waiting, no sending."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from services.gateway.fleet.routing import RoutingDecision
from services.gateway.rows.row_terms import RowTerms
from services.gateway.scope.prompt_logprobs_buffer import PromptLogprobsBuffer
from services.gateway.scope.token_log import Arrival, TokenLog
from shared.errors import DeadlineExpired, InvalidRequest, PenstockError, TooLarge
from shared.messages import TrimmedPart
from shared.roles import ROUTED_ROLES, hop_of_phase

FINAL_ERRORS = (InvalidRequest, TooLarge)
"""The errors that every other worker would answer with too: the request ends with them."""


class RequestPhase(StrEnum):
    """The part of its way that a request is on; the names are those of the timeline and of `Held`."""

    ADMIT = "admit"
    RETRIEVE = "retrieve"
    TOKENIZE = "tokenize"
    SHARED = "shared"
    ROUTE = "route"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


class RowVerdict(Enum):
    """The verdict on a row of text."""

    RELAY = auto()
    STALE = auto()
    DUPLICATE = auto()
    GAP = auto()
    REPLAY = auto()


@dataclass(slots=True)
class SessionState:
    """Phases: admit → [retrieve] → tokenize → route → prefill → decode → ended, and back to route; or admit →
    shared → ended, where another request computes the same, and from there to where that has come.

    `model` is empty until it is known. `epoch` counts routes from 1; `asks` counts what retrievers and
    tokenizers were asked, for whom it is the epoch. `holders` are the instances, as (role, instance),
    that may hold something of the latest of either, and who warms the prompt; `retriever_ask` is the last
    retriever that was asked, and as which. `epoch_tokens` came under this epoch; `fruitless` counts the last
    routes that failed without a token; `successor` is the decode worker that makes room for it, where its own
    one leaves; `is_let_go`: the holders of this epoch are told that it is over; `warmed_tokens` of the prompt
    were to be computed before it was placed. What stands before `relayed_position` the client has of another
    gateway. `earlier_tokens` were computed for an answer that another one took the place of.
    `coalesced_with`: the request that computes, or has computed, the `shared_tokens` of its output;
    `inherited_tokens` of others' it is charged for, as their clients have left. `kept`: its answer was given
    before. `trimmed` was left out of its prompt. `expected_tokens`: how long its answer gets in the mean, by
    answers like it, and `most_expected_tokens` what it is not expected to exceed; 0 where nobody can tell.
    """

    max_tokens: int
    model: str = ""
    phase: RequestPhase = RequestPhase.ADMIT
    epoch: int = 0
    asks: int = 0
    retriever_ask: tuple[str, int] = ("", 0)
    route: RoutingDecision | None = None
    log: TokenLog = field(default_factory=lambda: TokenLog(0))
    told: PromptLogprobsBuffer = field(default_factory=PromptLogprobsBuffer)
    holders: set[tuple[str, str]] = field(default_factory=set)
    epoch_tokens: int = 0
    replacements: int = 0
    fruitless: int = 0
    successor: str = ""
    is_let_go: bool = False
    cached_tokens: int = 0
    warmed_tokens: int = 0
    relayed_position: int = 0
    finish: str = ""
    earlier_tokens: int = 0
    coalesced_with: str = ""
    shared_tokens: int = 0
    inherited_tokens: int = 0
    kept: bool = False
    trimmed: tuple[TrimmedPart, ...] = ()
    expected_tokens: int = 0
    most_expected_tokens: int = 0

    def begin_phase(self, phase: RequestPhase, model: str = "") -> None:
        """Enter `phase`; from now on the request is for `model`, where that is said."""
        self.phase = phase
        self.model = model or self.model

    def begin_log(self, log: TokenLog, told: PromptLogprobsBuffer) -> None:
        """The prompt is known: `log` continues it, `told` waits for log-probabilities of it."""
        self.log, self.told = log, told

    def take_over_stream(self, model: str, max_tokens: int, log: TokenLog, relayed_position: int) -> None:
        """Go on with the stream of another gateway as if this one's first route had failed: `log` is what is
        known of it."""
        self.model, self.max_tokens = model, max_tokens
        self.log, self.told = log, PromptLogprobsBuffer()
        self.relayed_position = relayed_position
        self.replacements = 1

    def take_earlier_answer(
        self, model: str, prompt_tokens: int, ids: tuple[int, ...], text: str, finish: str
    ) -> None:
        """An answer of `model` that was given before is that of this request, all at once."""
        self.model, self.told = model, PromptLogprobsBuffer()
        self.log = TokenLog(prompt_tokens)
        self.log.append(ids, text)
        self.finish, self.kept = finish, True

    def begin_sharing(self, request_id: str) -> None:
        """Another request computes the same."""
        self.phase, self.coalesced_with = RequestPhase.SHARED, request_id

    def share_row(self, ids: tuple[int, ...], text: str, finish: str) -> None:
        """Take in what another request computes, which continues the log."""
        self.log.append(ids, text)
        self.shared_tokens += len(ids)
        self.finish = finish

    def hold_at(self, role: str, instance: str) -> None:
        """The instance may hold something of the request from now on."""
        self.holders.add((role, instance))

    def let_go(self, role: str, instance: str) -> None:
        """The instance holds nothing of the request; one that is unknown is fine."""
        self.holders.discard((role, instance))

    def record_cached(self, tokens: int) -> None:
        """Note how many tokens of the prompt were cached where it was first computed."""
        if not self.replacements:
            self.cached_tokens = tokens

    def begin_ask(self, role: str, instance: str) -> tuple[str, str]:
        """The instance is about to be asked; returns it as one of the holders."""
        self.asks += 1
        if role == "retriever":
            self.retriever_ask = (instance, self.asks)
        self.holders.add((role, instance))
        return role, instance

    def waits_for_retriever(self, sender: str, epoch: int) -> bool:
        """Whether `sender` ("": one that does not say who it is) has still to answer its question `epoch`."""
        instance, asked = self.retriever_ask
        return epoch == asked and sender in ("", instance) and ("retriever", instance) in self.holders

    def begin_epoch(self, route: RoutingDecision) -> None:
        """A new route: what comes under an earlier epoch is stale from now on."""
        self.epoch += 1
        self.route = route
        self.holders = set()
        self.successor, self.is_let_go = "", False
        self.epoch_tokens = 0
        self.told.release()  # what waits is of an earlier one
        self.phase = RequestPhase.ROUTE

    def leave_model(self) -> None:
        """Another model is to answer: what still comes from the workers of this one is stale."""
        self.earlier_tokens = self.used_tokens if self.log.ids else self.earlier_tokens
        self.epoch += 1
        self.route, self.fruitless, self.epoch_tokens = None, 0, 0
        self.log, self.finish = TokenLog(0), ""
        self.successor, self.is_let_go = "", False
        self.told.release()
        self.phase = RequestPhase.ADMIT

    def count_replacement(self) -> None:
        """The route failed; call it before the next one begins."""
        self.replacements += 1
        self.fruitless = 0 if self.epoch_tokens else self.fruitless + 1

    def routed(self) -> None:
        """Note that all three workers accepted; a token may already have come."""
        if self.phase is RequestPhase.ROUTE:
            self.phase = RequestPhase.PREFILL

    def take_holders(self) -> set[tuple[str, str]]:
        """The instances to be told that it is over; nobody is told twice."""
        holders, self.holders = self.holders, set()
        self.is_let_go = True
        return holders

    def name_successor(self, instance: str) -> None:
        """A decode worker is asked to make room for the request; it may hold something from now on."""
        self.successor = instance
        self.hold_at("decode", instance)

    def drop_successor(self) -> str:
        """Return the one that was named, "" for none; there is none any more."""
        successor, self.successor = self.successor, ""
        return successor

    def accept_row(
        self, epoch: int, position: int, ids: tuple[int, ...], text: str, finish: str
    ) -> RowVerdict:
        """Take one row of text in; only what continues the log is to be relayed. The first one of a stream
        that is read once more is the text that its client has: REPLAY."""
        if epoch != self.epoch or self.finish or self.phase is RequestPhase.ENDED:
            return RowVerdict.STALE
        arrival = self.log.arrival(position, len(ids))
        if arrival is not Arrival.NEXT:
            return RowVerdict.DUPLICATE if arrival is Arrival.DUPLICATE else RowVerdict.GAP
        if self.log.rereads:
            if ids or finish:
                return RowVerdict.GAP
            self.log.take_replay(text)
            return RowVerdict.REPLAY
        self.log.append(ids, text)
        self.epoch_tokens += len(ids)
        self.finish = finish
        self.phase = RequestPhase.DECODE
        return RowVerdict.RELAY

    def accept_next(self, epoch: int, position: int, ids: tuple[int, ...], text: str) -> bool:
        """Take in a row that has ids and is in the middle of an answer, if it is such a one and the next."""
        log = self.log
        if (
            epoch != self.epoch
            or not ids
            or self.finish
            or self.phase is not RequestPhase.DECODE
            or position != log.prompt_tokens + len(log.ids)
            or log.rereads
        ):
            return False
        log.append(ids, text)
        self.epoch_tokens += len(ids)
        return True

    def row_terms(self) -> RowTerms:
        """Return when a row is in the middle of an answer, as `accept_next` says."""
        log = self.log
        return RowTerms(
            (
                (self, "epoch", self.epoch),
                (self, "finish", ""),
                (self, "phase", RequestPhase.DECODE),
                (self, "log", log),
                (log, "rereads", False),
            ),
            tokens=((self, "epoch_tokens"),),
            chars=((log, "emitted_chars"),),
        )

    def is_from(self, sender: str, *roles: str) -> bool:
        """Whether `sender` is an instance of this route; one that does not say who it is, is believed."""
        route = self.route
        if not sender or route is None:
            return True
        for role in roles:  # noqa: SIM110 - asked for every row of text
            if route.instance_of(role) == sender:
                return True
        return False

    def needs(self, role: str, instance: str) -> bool:
        """Whether the request cannot go on when `instance` is lost.

        A speculator is never needed. Prefill is needed until its KV has arrived, which shows in the
        second token of the epoch: the first one is prefill's own.
        """
        if self.route is None or self.finish:
            return False
        if role == "decode" and instance == self.successor:  # it may have the request by now
            return True
        if not self.route.uses(role, instance):
            return False
        if role == "prefill":
            return self.epoch_tokens < 2
        return role in ROUTED_ROLES

    @property
    def running(self) -> bool:
        """Whether workers have it, rather than that it waits for them."""
        return self.phase in (RequestPhase.PREFILL, RequestPhase.DECODE)

    @property
    def complete(self) -> bool:
        """True when all tokens asked for are in the log: nothing is left to route anew."""
        return len(self.log.ids) >= self.max_tokens

    @property
    def used_tokens(self) -> int:
        """The tokens that the request counts for: none when no worker was asked to compute any."""
        computed = self.log.prompt_tokens + len(self.log.ids) - self.shared_tokens
        own = computed if self.epoch else self.warmed_tokens
        return self.inherited_tokens + own + self.earlier_tokens

    def record_warmed(self, tokens: int) -> None:
        """Note that a worker is asked to compute the first tokens of the prompt before it is placed."""
        self.warmed_tokens = max(self.warmed_tokens, tokens)

    def record_expected(self, tokens: int, most_tokens: int) -> None:
        """Note how long the answer is expected to get."""
        self.expected_tokens, self.most_expected_tokens = tokens, most_tokens

    def record_trimmed(self, parts: tuple[TrimmedPart, ...]) -> None:
        """Note what was left out of the prompt."""
        self.trimmed = parts

    def end_session(self) -> None:
        self.phase = RequestPhase.ENDED

    def expired(self, kind: str = "") -> DeadlineExpired:
        """The error of a deadline that passed now; `kind` where it is not told by what has come."""
        kind = kind or ("total" if self.log.ids else "first-token or total")
        hop = "route" if self.phase is RequestPhase.ROUTE else hop_of_phase(self.phase)
        if hop == "prefill" and self.route is not None:
            hop = self.route.prompt_role
        return DeadlineExpired(f"the {kind} deadline passed: allow more time or ask for less", hop=hop)


def is_final(error: PenstockError) -> bool:
    return isinstance(error, FINAL_ERRORS)
