"""Check what comes into the engine and make sequences of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shared.blocks.block_hash import HASH_BLOCK_TOKENS, HASH_BYTES, BlockHasher
from shared.engine.engine_config import EngineConfig, max_model_len
from shared.engine.loading.config import ModelConfig
from shared.engine.sampling.grammar import Grammars
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from shared.errors import InvalidRequest
from shared.fairness.share import TenantShare
from shared.sampling.parameters import NO_LOGPROBS, SamplingParams


class InputProcessor:
    """Turns arguments into a LiveSequence, or raises InvalidRequest that names what is wrong.

    `hasher` names blocks of KV whose layout's fingerprint is `layout`.
    """

    def __init__(self, config: EngineConfig, model: ModelConfig, hasher: BlockHasher, layout: str) -> None:
        self.max_model_len = max_model_len(config, model)
        self.vocab_size = model.vocab_size
        self._config = config
        self._model = model
        self._hasher = hasher
        self._layout = layout
        self.grammars = Grammars(config.model_dir, model.vocab_size, model.eos_token_ids)
        self._num_sequences = 0

    def sequence(
        self, key: str, token_ids: Sequence[int], prompt_len: int, params: SamplingParams, chain: HashChain
    ) -> LiveSequence:
        """A sequence to be computed, or to be attached to KV that has arrived."""
        params.validate(self._model.vocab_size)
        self.check_tokens(token_ids)
        if not 1 <= prompt_len <= len(token_ids):
            raise InvalidRequest(
                f"prompt_len {prompt_len} must be from 1 to {len(token_ids)}, the number of tokens"
            )
        end_len = min(prompt_len + params.max_tokens, self.max_model_len)
        self._check_end(len(token_ids), end_len, params.max_tokens)
        eos_ids = () if params.ignore_eos else self._model.eos_token_ids
        end_ids = frozenset((*eos_ids, *params.stop_token_ids))
        if len(token_ids) > prompt_len:
            _check_not_ended(token_ids[-1], end_ids)
        if params.grammar is not None:
            params = dataclasses.replace(params, grammar=self.grammars.compile(params.grammar))
        return LiveSequence(
            key=key,
            order=self._next_order(),
            tokens=list(token_ids),
            prompt_len=prompt_len,
            params=params,
            status=SequenceStatus.ACTIVE,
            chain=chain,
            end_len=end_len,
            end_ids=end_ids,
            num_scored=1
            if params.prompt_logprobs != NO_LOGPROBS
            else prompt_len,  # nothing is before the first
        )

    def check_revision(self, sequence: LiveSequence, base: int, token_ids: Sequence[int]) -> None:
        """Raise InvalidRequest unless these may follow the first `base` tokens, which were checked before."""
        if token_ids:
            self.check_tokens(token_ids)
        self._check_end(base + len(token_ids), sequence.end_len, sequence.params.max_tokens)
        last = token_ids[-1] if token_ids else sequence.tokens[base - 1]
        if base + len(token_ids) > sequence.prompt_len:
            _check_not_ended(last, sequence.end_ids)

    def _check_end(self, num_tokens: int, end_len: int, max_tokens: int) -> None:
        if num_tokens >= end_len:
            raise InvalidRequest(
                f"{num_tokens} tokens leave no room to generate: max_tokens {max_tokens} and the "
                f"limit of {self.max_model_len} tokens end the sequence at {end_len}; shorten the prompt"
            )

    def reservation(self, key: str, num_tokens: int, block_hashes: Sequence[bytes]) -> LiveSequence:
        """A sequence of which only the KV's size is known yet."""
        if not 1 <= num_tokens < self.max_model_len:
            raise InvalidRequest(f"cannot reserve {num_tokens} tokens; send 1 to {self.max_model_len - 1}")
        _check_hashes(block_hashes, num_tokens)
        chain = HashChain(self._kept_names(block_hashes), None, self._hasher)
        return LiveSequence(key, self._next_order(), [], 0, SamplingParams(), SequenceStatus.RESERVED, chain)

    def loan(self, key: str, share: TenantShare) -> LiveSequence:
        """A sequence of `share` without blocks yet that will only hold some for whoever reads them."""
        chain = HashChain([], None, self._hasher)
        loan = LiveSequence(key, self._next_order(), [], 0, SamplingParams(), SequenceStatus.LENT, chain)
        loan.share = share
        return loan

    def chain(
        self,
        token_ids: Sequence[int],
        block_hashes: Sequence[bytes] | None,
        tenant: str,
        adapter_digest: str = "",
    ) -> HashChain:
        """The names of the full blocks of `token_ids`: the caller's, continued, or the engine's own."""
        if block_hashes is None:
            chain = HashChain([], self._hasher.seed(self._layout, tenant, adapter_digest), self._hasher)
        else:
            _check_hashes(block_hashes, len(token_ids))
            chain = HashChain(self._kept_names(block_hashes), None, self._hasher)
        if self._config.prefix_cache:
            chain.extend(token_ids, len(token_ids) // HASH_BLOCK_TOKENS)
        return chain

    def _kept_names(self, block_hashes: Sequence[bytes]) -> list[bytes]:
        """Nobody waits for a block that another computes where it could not be found afterwards."""
        return list(block_hashes) if self._config.prefix_cache else []

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise InvalidRequest("the prompt has no tokens; send at least one")
        if len(token_ids) > self.max_model_len:
            raise InvalidRequest(
                f"{len(token_ids)} tokens are above the limit of {self.max_model_len}; send fewer"
            )
        vocab_size = self._model.vocab_size
        if set(map(type, token_ids)) != {int} or not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise InvalidRequest(f"token ids must be from 0 to {vocab_size - 1}; use this model's tokenizer")

    def _next_order(self) -> int:
        self._num_sequences += 1
        return self._num_sequences


def _check_not_ended(last_id: int, end_ids: frozenset[int]) -> None:
    if last_id in end_ids:
        raise InvalidRequest(f"the sequence has ended with id {last_id}; nothing is left to draw")


def _check_hashes(block_hashes: Sequence[bytes], num_tokens: int) -> None:
    if not all(isinstance(name, bytes) and len(name) == HASH_BYTES for name in block_hashes):
        raise InvalidRequest(f"a block hash is not of {HASH_BYTES} bytes; send them as they were made")
    if len(block_hashes) > num_tokens // HASH_BLOCK_TOKENS:
        raise InvalidRequest(
            f"{len(block_hashes)} block hashes are too many for {num_tokens} tokens; "
            f"send one per full block of {HASH_BLOCK_TOKENS}"
        )
