"""Configuration of the decode service."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from shared.config.fields import field_of
from shared.engine.draft_head.shipped import SHIPPED, head_directory
from shared.engine.engine_config import MAX_DRAFT_TOKENS, EngineConfig
from shared.engine.step_pacer import ITL_TARGET_S
from shared.kv.transports import AUTO, TRANSPORT_CHOICES
from shared.worker.config import EngineServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(EngineServiceConfig):
    """`max_sequences` counts running sequences and reservations, but for those of guests."""

    guest_sequences: int = field_of(
        -1,
        help="sequences beyond max_sequences of tenants with less than another, for which rows take turns; "
        "-1 = half as many again",
        minimum=-1,
        maximum=1 << 16,
    )
    kv_transport: str = field_of(
        AUTO,
        help="how KV comes in; auto = shared memory where prefill is on this host, else nats",
        choices=TRANSPORT_CHOICES,
    )
    hand_overs: int = field_of(
        4,
        help="streams handed over to other decode workers at a time when this one drains, or "
        "one at a time where another one is better off; 0 = none",
        minimum=0,
        maximum=1024,
    )
    max_step_ratio: float = field_of(
        1.5,
        help="prompts computed here make a step with decode rows at most so many times as long, while they "
        "have their first tokens in time; 0 = any",
        minimum=0.0,
    )
    prompt_weight: float = field_of(
        0.0,
        help="how many decoding requests a prompt that waits for the same cores counts for; 0 = decode first",
        minimum=0.0,
        maximum=1024.0,
    )
    itl_target_ms: float = field_of(
        1000 * ITL_TARGET_S,
        help="longest time from token to token that prompts make which are late otherwise, or pauses for "
        "them, where a request does not say; 0 = no longer than without them",
        minimum=0.0,
        maximum=10_000.0,
    )
    draft_tokens: int = field_of(
        4, help="most draft tokens per sequence and step; 0 = no drafts", minimum=0, maximum=64
    )
    draft_batch_tokens: int = field_of(
        32, help="most draft tokens per step over the whole batch", minimum=0, maximum=1 << 16
    )
    draft_fan: int = field_of(
        3,
        help="likeliest ids at each place of a round behind which a speculator drafts ahead of time, "
        "if its cores are its own; 0 = none",
        minimum=0,
        maximum=16,
    )
    ngram_tokens: int = field_of(
        -1,
        help="most tokens drafted from a request's own text per step, where no draft has come; 0 = none, "
        "-1 = 7 where answers stay the same bit for bit",
        minimum=-1,
        maximum=MAX_DRAFT_TOKENS,
    )
    ngram_scopes: int = field_of(
        32,
        help="tenants and cache salts whose latest answers are drafted from, too, 208 KB each; 0 = none",
        minimum=0,
        maximum=4096,
    )
    draft_head: str = field_of(
        SHIPPED,
        help="directory of a draft head of the model, which drafts where it promises more than text does; "
        "auto = the one that ships, for the model that ships; none = none",
    )
    default_sampling: tuple[str, ...] = field_of(
        (),
        help="what a request takes that does not say, as temperature=0.7, over what the model's makers say; "
        "openai = not what they say",
        pattern=r"openai|\w+\s*=\s*\S+",
    )

    def engine_config(self, model_dir: Path) -> EngineConfig:
        config = EngineServiceConfig.engine_config(self, model_dir)
        return replace(
            config,
            guest_sequences=config.max_sequences // 2 if self.guest_sequences < 0 else self.guest_sequences,
            max_step_ratio=self.max_step_ratio,
            itl_target_ms=self.itl_target_ms,
            ngram_tokens=self.ngram_tokens,
            ngram_batch_tokens=self.draft_batch_tokens,
            ngram_scopes=self.ngram_scopes,
            draft_head=head_directory(
                self.draft_head, model_dir, device=self.device, tensor_parallel=self.tensor_parallel
            ),
        )
