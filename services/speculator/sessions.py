"""Draft sessions as the speculator keeps them: soft state that may vanish at any time. Pure."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.sampling.grammar import CompiledGrammar
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import DraftTree
from shared.worker.drafts.prefix_digest import PrefixDigest


class DraftWish(NamedTuple):
    """The wish that came with a commit at `asked_s`: `num_tokens` behind what is final, and, where these are
    being verified, `ahead_tokens` behind each of `fan` ids at each place where that may end.

    The second part is of use until `until_s` of the clock (None = unknown). `follow_up`: the first part was
    granted just now, and decode will have come one token further when it has the answer.
    """

    num_tokens: int
    fan: int = 0
    ahead_tokens: int = 0
    until_s: float | None = None
    asked_s: float = 0.0
    follow_up: bool = False


class AskedRound(NamedTuple):
    """A session with the guesses that are verified now."""

    key: str
    session: DraftSession
    wish: DraftWish
    guesses: tuple[int, ...]


@dataclass(slots=True)
class DraftSession:
    """The tokens that a decode worker has made final, and what it wants guessed after them (None = nothing
    now). `tree` is what it was last sent.

    `compiling`: its grammar is not there yet, so nothing can be guessed. `num_known`: how many of its first
    tokens the engine knows. `adapter`: what the engine calls the one that it guesses with, "" for the draft
    alone.
    """

    request_id: str
    epoch: int
    decode: str
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    used_at_s: float
    wish: DraftWish | None = None
    tree: DraftTree | None = None
    compiling: bool = False
    num_known: int = 0
    adapter: str = ""
    digest: PrefixDigest = field(default_factory=PrefixDigest)

    @property
    def wishes_plainly(self) -> bool:
        """Return whether it has nothing that could be verified now."""
        wish = self.wish
        return wish is not None and wish.num_tokens > 0 and not self.compiling and not self.in_round

    @property
    def in_round(self) -> tuple[int, ...]:
        """Return the guesses that decode verifies now, as far as is known here, if drafts are wanted for what
        comes of that. Grammars are left out: each branch would go through all of its text once more."""
        wish, tree = self.wish, self.tree
        if wish is None or tree is None or not wish.fan or self.params.grammar is not None:
            return ()
        return tree.rest_after(self.tokens[tree.base :])


class DraftSessions:
    """The draft sessions, at most `limit`; the least recently used gives way, an unused one ends after
    `lease_s`.
    `on_drop` is called with the key of each that is gone, however it went."""

    def __init__(
        self,
        *,
        limit: int,
        lease_s: float,
        on_drop: Callable[[str], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._limit = limit
        self._on_drop = on_drop
        self._lease_s = lease_s
        self._clock = clock
        self._sessions: OrderedDict[str, DraftSession] = OrderedDict()  # least recently used first
        self.evicted = 0
        self.diverged = 0

    def open_session(
        self,
        key: str,
        request_id: str,
        epoch: int,
        decode: str,
        tokens: list[int],
        prompt_len: int,
        params: SamplingParams,
        *,
        adapter: str = "",
    ) -> None:
        self.drop(key)
        while len(self._sessions) >= self._limit:
            self.drop(next(iter(self._sessions)))
            self.evicted += 1
        self._sessions[key] = DraftSession(
            request_id,
            epoch,
            decode,
            tokens,
            prompt_len,
            params,
            self._clock.monotonic_s(),
            compiling=params.grammar is not None,
            adapter=adapter,
            digest=PrefixDigest(tokens),
        )

    def commit(
        self, key: str, base: int, token_ids: Sequence[int], wish: DraftWish, digest: bytes = b""
    ) -> bool:
        """Make tokens final from position `base` on. False when the session is unknown, would have a gap, or
        holds other tokens than its decode worker, of which all have `digest` (b"" where it does not say).

        One with a gap or with other tokens is dropped: decode, which hears of it, does not close what is no
        session to it. A later commit replaces what an earlier one wished for, so a slow drafter skips what is
        over. The same commit again changes nothing.
        """
        session = self._sessions.get(key)
        if session is None:
            return False
        if not 0 <= base <= len(session.tokens):
            self.drop(key)
            return False
        grows = base == len(session.tokens)
        session.tokens[base:] = token_ids
        if grows:
            session.digest.extend(token_ids)
        else:
            session.digest = PrefixDigest(session.tokens)
        if digest and digest != session.digest.value:
            self.diverged += 1
            self.drop(key)
            return False
        session.num_known = min(session.num_known, base)
        session.wish = wish
        session.used_at_s = self._clock.monotonic_s()
        self._sessions.move_to_end(key)
        return True

    def take_wishes(self, most: int) -> list[tuple[str, DraftSession, DraftWish]]:
        """Take at most `most` sessions that want a draft and have none, longest idle first; each once."""
        found: list[tuple[str, DraftSession, DraftWish]] = []
        for key, session in self._sessions.items():
            if len(found) < most and session.wishes_plainly:
                assert session.wish is not None
                found.append((key, session, session.wish))
                session.wish = None
        return found

    def take_rounds(self, most: int) -> list[AskedRound]:
        """Take at most `most` sessions for whose round drafts are wanted ahead, the last that asked first,
        but none for which they would come too late."""
        now_s = self._clock.monotonic_s()
        found: list[AskedRound] = []
        for key, session in reversed(self._sessions.items()):
            guesses = session.in_round
            if not guesses or len(found) == most:
                continue
            wish, session.wish = session.wish, None
            assert wish is not None
            if wish.until_s is None or wish.until_s > now_s:
                found.append(AskedRound(key, session, wish, guesses))
        return found

    @property
    def has_wishes(self) -> bool:
        return any(session.wishes_plainly for session in self._sessions.values())

    @property
    def has_rounds(self) -> bool:
        return any(session.in_round for session in self._sessions.values())

    def take_grammar(self, key: str, grammar: CompiledGrammar) -> None:
        """Take the grammar that the session waited for; one that is gone did not wait any longer."""
        session = self._sessions.get(key)
        if session is not None:
            session.params = dataclasses.replace(session.params, grammar=grammar)
            session.compiling = False

    def forget(self, keys: Iterable[str]) -> None:
        """The engine has nothing of these sessions any more."""
        for key in keys:
            if key in self._sessions:
                self._sessions[key].num_known = 0

    def drop(self, key: str) -> bool:
        if self._sessions.pop(key, None) is None:
            return False
        self._on_drop(key)
        return True

    def drop_decode(self, decode: str) -> int:
        """Forget every session of a decode worker that is gone."""
        return self._drop([key for key, session in self._sessions.items() if session.decode == decode])

    def drop_request(self, request_id: str, epoch: int) -> bool:
        """Forget a cancelled request at epochs up to `epoch`."""
        return bool(
            self._drop(
                [
                    key
                    for key, session in self._sessions.items()
                    if session.request_id == request_id and session.epoch <= epoch
                ]
            )
        )

    def expire(self) -> int:
        """Forget sessions that nobody has used for `lease_s`."""
        limit_s = self._clock.monotonic_s() - self._lease_s
        return self._drop([key for key, session in self._sessions.items() if session.used_at_s <= limit_s])

    def held(self) -> list[DraftSession]:
        return list(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def _drop(self, keys: Sequence[str]) -> int:
        for key in keys:
            self.drop(key)
        return len(keys)
