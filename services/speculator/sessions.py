"""Draft sessions as the speculator keeps them: soft state that may vanish at any time. Pure."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.sampling.grammar import CompiledGrammar
from shared.sampling.parameters import SamplingParams


@dataclass(slots=True)
class DraftSession:
    """The tokens that a decode worker has made final, and how many it wants guessed after them (0 = none
    now).

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
    wanted: int = 0
    compiling: bool = False
    num_known: int = 0
    adapter: str = ""

    @property
    def has_wish(self) -> bool:
        return self.wanted > 0 and not self.compiling


class DraftSessions:
    """The draft sessions, at most `limit`; the least recently used gives way, an unused one ends after
    `lease_s`.
    `on_drop` is num_known the key of each that is gone, however it went."""

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
        )

    def commit(self, key: str, base: int, token_ids: Sequence[int], wanted: int) -> bool:
        """Make tokens final from position `base` on. False when the session is unknown or would have a gap.

        One with a gap is dropped: decode, which hears of it, does not close what is no session to it.
        A later commit replaces what an earlier one wished for, so a slow drafter skips what is over.
        """
        session = self._sessions.get(key)
        if session is None:
            return False
        if not 0 <= base <= len(session.tokens):
            self.drop(key)
            return False
        session.tokens[base:] = token_ids
        session.num_known = min(session.num_known, base)
        session.wanted = wanted
        session.used_at_s = self._clock.monotonic_s()
        self._sessions.move_to_end(key)
        return True

    def take_wishes(self, most: int) -> list[tuple[str, DraftSession, int]]:
        """Take at most `most` sessions that want a draft, longest idle first, with how many tokens; each
        once."""
        wishes = [
            (key, session, session.wanted) for key, session in self._sessions.items() if session.has_wish
        ]
        for _, session, _ in wishes[:most]:
            session.wanted = 0
        return wishes[:most]

    @property
    def has_wishes(self) -> bool:
        return any(session.has_wish for session in self._sessions.values())

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
