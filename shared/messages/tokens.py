"""The token path: one message per step and receiver, row i of every column belongs to request_ids[i]."""

from __future__ import annotations

from dataclasses import dataclass

from shared.sampling.parameters import TokenLogprob


@dataclass(frozen=True, slots=True)
class Mark:
    """A phase measured at a hop: a row of the timeline, `duration_us` long."""

    phase: str
    duration_us: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """prefill | decode → detokenizer, one message per step; columns of equal length.

    positions[i] is the position of token_ids[i][0]. finish[i] is "" while the request goes on,
    else "stop" (eos or a stop id, which is then the last id, or the grammar's end), "length", or "error":
    nothing was left to draw after these ids, so the request has failed.
    """

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    finish: tuple[str, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """prefill → gateway, one message per step: raw log-probabilities of the prompt's own tokens.

    `position` is that of the first; position 0 never comes. All that a step has computed, so at most
    `MAX_SCORED_TOKENS` of the engine; the last one leaves before the first token of the epoch.
    """

    position: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """detokenizer → gateway, one message per gateway and step; columns as in `Tokens`.

    Ids come at once, text when it can no longer change: texts[i] may be "" or belong to earlier
    ids. finish[i] gains "stop_string": text is cut before the match, the request is over.
    """

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    finish: tuple[str, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]
