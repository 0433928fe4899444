"""Let held sequences go on in several ways at once: who drafts ahead prepares for what others may decide."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.memory.kv_pool import BLOCK_TOKENS
from shared.engine.outlet import Outlet
from shared.engine.sequence import HashChain, SequenceStatus
from shared.errors import InvalidRequest


class Branching(Outlet):
    """The part of an `Engine` that drafts in branches; each call changes everything it has to, or nothing."""

    def rank_draws(self, key: str, count: int) -> None:
        """Tell, with each token that is drawn for `key` from now on, the `count` likeliest outcomes of its
        draw; 0: none. One that is unknown is fine."""
        sequence = self._scheduler.sequences.get(key)
        if sequence is not None:
            sequence.num_candidates = count

    def branch(self, key: str, new_key: str, base: int, token_ids: Sequence[int], *, stop_after: int) -> None:
        """A new sequence with the first `base` tokens of `key` and then `token_ids`, for which `stop_after`
        more are drawn and which then is held, as `admit` does it.

        It shares the full blocks of KV that they have in common and gets a copy of the one that is not full.
        `key`, which itself has been admitted with `stop_after`, may go on meanwhile. Raises InvalidRequest
        where it is not held or drawn for here, or has no KV of `base` tokens (any more), and as `admit` does.
        """
        source = self._scheduler.sequences.get(key)
        live = (SequenceStatus.HELD, SequenceStatus.ACTIVE)
        if source is None or not source.pinned or source.status not in live or source.on_layer is not None:
            raise InvalidRequest(f"sequence {key!r} is not held here; branch off one that is")
        if not source.prompt_len <= base <= source.num_computed or stop_after < 1 or not token_ids:
            raise InvalidRequest(
                f"a branch of {key!r} from {base} is not of its {source.num_computed} computed tokens with "
                "something behind the prompt, a token of its own, and one to draw"
            )
        if not self._block_manager.can_share(source, base):
            raise InvalidRequest(f"KV of {key!r} before {base} is behind its window; admit it once more")
        self._scheduler.check_room(new_key, source.priority, source.share)
        self._input_processor.check_tokens(token_ids)
        tokens = [*source.tokens[:base], *token_ids]
        chain = HashChain(source.chain.hashes[: base // BLOCK_TOKENS], source.chain.seed, source.chain.hasher)
        sequence = self._input_processor.sequence(new_key, tokens, source.prompt_len, source.params, chain)
        sequence.adapter, sequence.share, sequence.stay_s = source.adapter, source.share, source.stay_s
        sequence.num_candidates = source.num_candidates
        sequence.num_scored = source.prompt_len  # the source's are the same
        sequence.hold_len = len(tokens) + stop_after
        self._block_manager.branch_blocks(
            sequence, source, base, min(sequence.hold_len, sequence.end_len) - 1
        )
        sequence.prefilling = sequence.num_uncomputed > 1
        self._add_sequence(sequence, source.priority, None)

    def hold(self, key: str) -> bool:
        """Stop drawing for a sequence before it has what it was admitted for; it is held with what it has.

        False, and nothing happens, where it is neither, or its next token is not to be computed next.
        """
        sequence = self._scheduler.sequences.get(key)
        if sequence is None or not sequence.pinned:
            return False
        if sequence.status is SequenceStatus.HELD:
            return True
        if sequence.status is not SequenceStatus.ACTIVE or sequence.num_uncomputed != 1:
            return False
        self._sampler.drop_postponed([key])
        sequence.hold_len = len(sequence.tokens)
        sequence.status = SequenceStatus.HELD
        return True
