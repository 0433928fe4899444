"""Know how long answers of each kind usually are: by model, tenant, form of the answer and length of the
prompt."""

from __future__ import annotations

from dataclasses import dataclass

from cachetools import LRUCache

from services.gateway.admission.length_sketch import LengthEstimate, LengthSketch
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.request.request import Request
from shared.messages import NO_THINKING, PromptThinking
from shared.telemetry.metrics import prompt_bucket

MAX_KINDS = 4096
"""The kinds of answers that are remembered, about 600 bytes each; the one that was not met for longest is
forgotten first."""
LEAST_SEEN = 8.0
"""Nothing is predicted of a model, or of a kind, with fewer answers."""
PRIOR_SEEN = 16.0
"""The answers of a model count as so many beside those of a kind, and what is known of a kind
beside those of a tenant: who has few is taken for one like the others."""
MAX_ESTIMATES = 256
"""The kinds whose estimates are kept: making one takes longer than all else that is done with it."""
RENEWED_AFTER = 1 / 16
"""An estimate stands until the answers that it was made of have become more by this share."""
SURE_SHARE = 0.95
"""The share of answers that is expected not to be longer than is said."""

TOOLS, SCHEMA, THINKING, TEXT = "tools", "schema", "thinking", "text"


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """Answers that are about as long as each other. `form`: what the answer may hold, `prompt`: the length of
    the prompt, as metrics have it."""

    model: str
    tenant: str
    form: str
    prompt: str

    @classmethod
    def of(
        cls,
        request: Request,
        model: ModelIdentity,
        prompt_tokens: int,
        thinking: PromptThinking = NO_THINKING,
    ) -> AnswerKind:
        forms = {
            TOOLS: bool(request.tool_use.tools),
            SCHEMA: request.sampling.grammar is not None and not request.tool_use.tools,
            THINKING: bool(thinking.format),
        }
        form = "+".join(name for name, has in forms.items() if has) or TEXT
        return cls(model.served_name, request.tenant, form, prompt_bucket(prompt_tokens))

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The sketches that it is in, the widest first."""
        return (
            (self.model,),
            (self.model, self.form, self.prompt),
            (self.model, self.form, self.prompt, self.tenant),
        )


_NONE_SEEN = LengthSketch()
"""The sketch of a kind of which no answer is known."""


@dataclass(frozen=True, slots=True)
class _Made:
    """An estimate that was made of `sketches`, and stands until one of them has been added more than in
    `until`."""

    estimate: LengthEstimate
    sketches: tuple[LengthSketch, ...]
    until: tuple[float, ...]

    @classmethod
    def of(cls, sketches: tuple[LengthSketch, ...]) -> _Made:
        model, form, own = sketches
        estimate = LengthEstimate.of(own.beside(form.beside(model, PRIOR_SEEN), PRIOR_SEEN))
        return cls(estimate, sketches, tuple(each.added + RENEWED_AFTER * each.seen for each in sketches))

    def stands(self, sketches: tuple[LengthSketch, ...]) -> bool:
        now = zip(sketches, self.sketches, self.until, strict=True)
        return all(sketch is known and sketch.added <= until for sketch, known, until in now)


class AnswerLengths:
    """The lengths of answers that this gateway has seen.

    A tenant's answers count the less for others the more it has had: no tenant makes what is expected of
    another one by sending much.
    """

    def __init__(self) -> None:
        self._sketches: LRUCache[tuple[str, ...], LengthSketch] = LRUCache(MAX_KINDS)
        self._made: LRUCache[AnswerKind, _Made] = LRUCache(MAX_ESTIMATES)

    def record(self, kind: AnswerKind, tokens: int, *, cut: bool) -> None:
        """An answer of this kind has ended after so many tokens, or was `cut` there. One that never began
        says nothing."""
        if tokens < 1:
            return
        *shared, own = (self._sketch(key) for key in kind.keys)
        weight = PRIOR_SEEN / (PRIOR_SEEN + own.seen)
        for sketch in shared:
            sketch.add(tokens, cut=cut, weight=weight)
        own.add(tokens, cut=cut)

    def estimate(self, kind: AnswerKind) -> LengthEstimate | None:
        """Return how long an answer of this kind may get, None while too few of its model are known."""
        sketches = tuple(self._sketches.get(key, _NONE_SEEN) for key in kind.keys)
        if max(sketches[0].seen, sketches[-1].seen) < LEAST_SEEN:
            return None
        made = self._made.get(kind)
        if made is None or not made.stands(sketches):
            made = self._made[kind] = _Made.of(sketches)
        return made.estimate

    def _sketch(self, key: tuple[str, ...]) -> LengthSketch:
        sketch = self._sketches.get(key)
        if sketch is None:
            sketch = self._sketches[key] = LengthSketch()
        return sketch
