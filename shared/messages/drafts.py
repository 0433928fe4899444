"""Draft sessions: a decode worker and its speculator."""

from __future__ import annotations

from dataclasses import dataclass

from shared.sampling.parameters import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftOpen:
    """decode → speculator: keep a draft session; envelope.request_id + epoch is its key.

    `adapter` is the name of the one that the target computes with, "" for none.
    """

    token_ids: bytes
    prompt_len: int
    sampling: SamplingParams
    decode: str
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class DraftCommit:
    """decode → speculator, one per verifier step: what became final, and the wish for a next draft.

    Row i: `token_ids[i]` are final from position `bases[i]` on; draft `lengths[i]` tokens after
    them (0 = none wanted).

    What is verified meanwhile ends somewhere: for each number of ids that may be accepted, draft
    `ahead_lengths[i]` tokens behind each of the `fans[i]` likeliest that may follow there (0 = none wanted).
    It is of use within `within_us` of the commit (0 = unknown). `prefix_digests[i]` is that of all tokens
    that are final: who finds another has lost some, and drafts for a text that nobody writes.
    """

    decode: str
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    bases: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    fans: tuple[int, ...] = ()
    ahead_lengths: tuple[int, ...] = ()
    within_us: int = 0
    prefix_digests: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """speculator → decode: row i drafts token_ids[i] from position bases[i] on. Late ones are dropped.

    `branches[i]`, the likeliest first, are for the round that verifies these ids. Each is a run of integers:
    how many of them it takes to be right, the id that follows instead of the next one, the number of its own
    ids, these ids. The answer left `took_us[i]` after the commit that it answers had come.
    """

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    bases: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    branches: tuple[tuple[int, ...], ...] = ()
    took_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftClose:
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftResync:
    """speculator → decode: I do not know this session (restart, eviction, gap); open it again."""

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
