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
    """

    decode: str
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    bases: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """speculator → decode: row i drafts token_ids[i] from position bases[i] on. Late ones are dropped."""

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    bases: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class DraftClose:
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftResync:
    """speculator → decode: I do not know this session (restart, eviction, gap); open it again."""

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
