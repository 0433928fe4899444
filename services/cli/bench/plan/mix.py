"""Several sources by weight, each client with its conduct; a source that ends begins anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.cli.bench.plan.conduct import Conduct, ConductShare, spread_conduct
from services.cli.bench.plan.dialogue import Dialogue, DialogueSource, DialogueTurn
from services.cli.bench.plan.prompt_writer import PromptWriter
from services.cli.bench.plan.slow_schema import slow_schema
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class DialogueMix:
    sources: Sequence[tuple[float, DialogueSource]]
    """Each has its weight."""
    writer: PromptWriter
    shares: Sequence[ConductShare] = ()
    marked: bool = False
    """Each dialogue's prompts begin with a mark of its own, so that it finds nothing of another's cached."""

    def endless(self) -> Iterator[Dialogue]:
        """Yield without an end and without times. Raises InvalidRequest for a source of nothing."""
        weights = [weight for weight, _ in self.sources]
        streams = [_again_and_again(source) for _, source in self.sources]
        random = self.writer.random("mix")
        number = 0
        while True:
            (stream,) = random.choices(streams, weights)
            yield self._with_conduct(next(stream).at(None), number)
            number += 1

    def replayed(self) -> Iterator[Dialogue]:
        """Yield the one trace with its times, once. Raises InvalidRequest where it is not one trace."""
        if len(self.sources) != 1 or not self.sources[0][1].has_times:
            raise InvalidRequest(
                "a replay needs the times of one trace: pass one --source mooncake:, azure: or tracelab:"
            )
        for number, dialogue in enumerate(self.sources[0][1].dialogues()):
            yield self._with_conduct(dialogue, number)

    def _with_conduct(self, dialogue: Dialogue, number: int) -> Dialogue:
        offset = self.writer.random("conduct").random()
        conduct, amount = spread_conduct(self.shares, number, offset)
        dialogue = replace(dialogue, number=number, conduct=conduct, amount=amount, mark=self._mark(number))
        match conduct:
            case Conduct.OVERSIZED:
                long = replace(self.writer, length_scale=1.0).text(amount, f"oversized/{number}")
                return replace(
                    dialogue, turns=(DialogueTurn(long, dialogue.turns[0].max_tokens),), helpers=()
                )
            case Conduct.SCHEMA:
                own = self.writer.text_random(f"schema/{number}").getrandbits(64)
                return replace(dialogue, json_schema=slow_schema(amount, f"p{own:016x}"))
        return dialogue

    def _mark(self, number: int) -> str:
        return f"[{self.writer.random(f'mark/{number}').getrandbits(64):016x}] " if self.marked else ""


def _again_and_again(source: DialogueSource) -> Iterator[Dialogue]:
    lap = 0
    while True:
        empty = True
        for dialogue in source.dialogues():
            empty = False
            yield replace(dialogue, lap=lap)
        if empty:
            raise InvalidRequest("a source has no dialogue: its file has no line with a prompt; name another")
        lap += 1
