"""Faults in what clients get, and in which route of a request counts."""

from __future__ import annotations

from tests.simulation.mutants.mutant import Mutant

STREAMS = (
    Mutant(
        "a gap is taken for the next row",
        "services.gateway.scope.token_log",
        "if position == end:",
        "if position >= end:",
    ),
    Mutant(
        "a new detokenizer says again what the client has",
        "services.detokenizer.decoder_session",
        "self._unsent_text = replayed.text[emitted:]",
        "self._unsent_text = replayed.text",
    ),
    Mutant(
        "a new detokenizer does not decode what is replayed",
        "services.detokenizer.decoder_session",
        'replayed = self._advance(tuple(replay), "")',
        'replayed = self._advance((), "")',
    ),
    Mutant(
        "a slow client's event begins where its last row did",
        "services.gateway.scope.response_buffer",
        "        self._text_tokens += len(ids)\n",
        "        self._text_tokens += len(ids)\n        self._text.text.position = position\n",
    ),
    Mutant(
        "a request that was routed anew may have all its tokens again",
        "services.gateway.session.route_messages",
        "        prompt_len=prompt_len,\n        block_hashes=pack_hashes(hashes),",
        "        prompt_len=len(ids),\n        block_hashes=pack_hashes(hashes),",
    ),
    Mutant(
        "prefill does not say that its token was the last",
        "services.prefill.actor",
        'output.token_ids, output.finish_reason or "")',
        'output.token_ids, "")',
    ),
    Mutant(
        "a new route has the epoch of the one before",
        "services.gateway.scope.session_state",
        "self.epoch += 1\n        self.route = route",
        "self.epoch = max(1, self.epoch)\n        self.route = route",
    ),
    Mutant(
        "a text is shown without what a character lacked at its end",
        "services.detokenizer.decoder_session",
        "            text += self._decoder.finish()\n",
        "            pass\n",
    ),
    Mutant(
        "a stop string takes the token that completes it",
        "services.detokenizer.decoder_session",
        'return _Advance(index + 1, "".join(shown), "stop_string")',
        'return _Advance(index, "".join(shown), "stop_string")',
    ),
    Mutant(
        "a stream of events ends without its mark",
        "services.gateway.http.completions.event_stream",
        '(b"" if last is None else _event(last)) + mark)',
        '(b"" if last is None else _event(last)))',
    ),
    Mutant(
        "an error behind the head of a stream is told as if nothing had begun",
        "services.gateway.http.completion_calls",
        "if failed is not None and not events.started:",
        "if failed is not None:",
    ),
    Mutant(
        "the end of another choice is not told in a stream of events",
        "services.gateway.http.completions.choice",
        "if self._sender is not None and end.outcome == pb.OUTCOME_FINISHED:",
        "if self._sender is not None and end.outcome == pb.OUTCOME_FINISHED and not self.index:",
    ),
    Mutant(
        "choices of a stream of events share a frame",
        "services.gateway.http.completions.answer",
        "frame = self._frames.get(index)",
        "frame = self._frames.get(0)",
    ),
    Mutant(
        "a draft is taken whatever is drawn",
        "shared.engine.sampling.sampler",
        "if reason is not None or token_id != draft or",
        "if reason is not None or",
    ),
    Mutant(
        "a first token may come at any time before the end",
        "services.gateway.session.route_watch",
        "            return self._budget.first_token\n",
        "            return self._budget.total\n",
    ),
    Mutant(
        "a cancel forbids later routes too",
        "shared.actor.tombstones",
        "if stone is not None and epoch <= stone.epoch and",
        "if stone is not None and",
    ),
    Mutant(
        "an engine that dies convicts whoever it had",
        "services.gateway.fleet.poison_requests",
        "guilty = [record for record in struck if record.strikes >= POISON_STRIKES]",
        "guilty = struck",
    ),
)
