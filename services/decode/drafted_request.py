"""One draft session as the decode worker keeps it: what its speculator knows, and has answered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.decode.ahead.draft_fan import DraftFan
from services.decode.ahead.draft_offers import DraftUse, Proposal, RoundEnd
from services.decode.draft_length import DraftLength
from shared.messages import DraftClose, DraftCommit, DraftOpen, pack_ids
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import DraftTree
from shared.worker.drafts.prefix_digest import PrefixDigest

REOPEN_AFTER_TOKENS = 16
"""A session that the speculator dropped is opened again after this many tokens, later twice as many."""
MAX_REOPEN_AFTER_TOKENS = 1024
MAX_LAG_TOKENS = 8
"""A draft is asked for this much longer at most, for the tokens decoded while it is made and sent."""


class Outgoing(NamedTuple):
    """A message for a speculator; request_id and epoch go into its envelope ("" and 0 when it has rows)."""

    speculator: str
    request_id: str
    epoch: int
    message: DraftOpen | DraftCommit | DraftClose


class AskedRow(NamedTuple):
    """Hold what a commit says of one session: tokens from `base` on are final, and it wants so many guesses.

    It wants branches for `fan` ids at each place of the round."""

    base: int
    token_ids: tuple[int, ...]
    length: int
    ahead_length: int
    fan: int
    prefix_digest: bytes


@dataclass(slots=True)
class DraftedRequest:
    """Keep one draft session. `tokens`: prompt and output so far; `adapter`: what clients call it."""

    request_id: str
    epoch: int
    speculator: str
    tokens: list[int]
    prompt_len: int
    sampling: SamplingParams
    length: DraftLength
    fan: DraftFan
    adapter: str = ""
    known: bool = False  # the speculator was sent num_sent of `tokens`, and has not said that it lost them
    num_sent: int = 0
    advanced: bool = True  # since it was last asked for anything
    tree: DraftTree | None = None  # the newest answer, until it is proposed
    asked_s: float = 0.0  # when the last commit went out
    unanswered: int = 0  # commits since the last answer
    _open_at: int = 0  # do not open (again) before the sequence is this long
    _reopen_after: int = REOPEN_AFTER_TOKENS
    lag: int = 1  # tokens that were decoded between the last commit and the use of its answer
    _digest: PrefixDigest = field(default_factory=PrefixDigest)  # of what the speculator has been sent
    _is_fanned: bool = False  # it asked for branches
    _is_offered: bool = False  # the engine has a draft for the step that runs

    def advance(self, token_ids: Sequence[int], proposed: int, accepted: int) -> None:
        """Take in one verified step: these tokens are final."""
        self.tokens.extend(token_ids)
        self.advanced = True
        self.length.observe(proposed, accepted)
        if self._is_offered and not proposed:
            self.length.observe_waste()
        self._is_offered = False

    def open(self, decode: str) -> DraftOpen | None:
        """Return what opens it at its speculator, where that is due."""
        if self.known or len(self.tokens) < self._open_at:
            return None
        self.known = self.advanced = True
        self.num_sent = len(self.tokens)
        self._digest = PrefixDigest(self.tokens)
        self._open_at = self.num_sent + self._reopen_after
        self._reopen_after = min(2 * self._reopen_after, MAX_REOPEN_AFTER_TOKENS)
        return DraftOpen(pack_ids(self.tokens), self.prompt_len, self.sampling, decode, self.adapter)

    def forget_sent(self) -> None:
        """The speculator does not know it (any more)."""
        self.known = False
        self.tree = None

    def commit(self, wanted: int, fan: int, now_s: float) -> AskedRow:
        """Ask for drafts, behind all that the speculator was not sent: it never sees a gap."""
        base, new = self.num_sent, tuple(self.tokens[self.num_sent :])
        self.num_sent += len(new)
        self.unanswered += 1
        self._digest.extend(new)
        self.asked_s, self._is_fanned = now_s, fan > 0
        return AskedRow(base, new, wanted + self.lag, wanted, fan, self._digest.value)

    def answer(self, tree: DraftTree) -> None:
        """Keep an answer, unless there is a newer one."""
        if tree.token_ids and tree.base >= (self.tree.base if self.tree else 0):
            self.tree = tree

    def propose(self, key: str) -> tuple[Proposal | None, int]:
        """Return the answer that is there and still ahead, and how many guesses came too late instead."""
        tree, self.tree = self.tree, None
        if tree is None:
            return None, 0
        num_known = len(self.tokens)
        if not tree.branches:
            self.lag = max(1, min(num_known - tree.base, MAX_LAG_TOKENS))
        if tree.base <= num_known and tree.rest_after(self.tokens[tree.base :]):
            return Proposal(key, tree, num_known), 0
        if tree.branches:
            return None, 0
        self.length.observe_waste()
        return None, len(tree.token_ids)

    def record_use(self, use: DraftUse) -> None:
        """Take note of a draft that came to the engine, or of a round that has ended there."""
        if use.late:
            self.length.observe_waste()
        elif use.ended is RoundEnd.HIT or (use.ended is None and not self._is_fanned):
            self._is_offered = True
        if use.ended is not None and self._is_fanned:
            self.fan.observe(in_time=use.ended is not RoundEnd.LATE)
        elif use.ended is None:
            self.lag = min(self.lag + use.behind, MAX_LAG_TOKENS)
