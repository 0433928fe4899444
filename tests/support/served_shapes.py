"""The shapes of the most served checkpoints, read from their published config.json.

Tests on small shapes prove logic, not kernels: blocks, tiles, panels and claims depend on widths. The table
drives the tests of every kernel and backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ROW_COUNTS = (1, 2, 11, 12, 13, 16, 63, 64, 65, 512)
"""Around every border of tiles of 8 and 12 rows, of query tiles and of blocks of rows."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True, slots=True)
class ServedShape:
    """One published checkpoint. `architecture` and `fields` are its config.json's, but for the sizes here.

    `window` is in tokens, 0 for none; `experts` 0 is a dense MLP of `intermediate`, else one expert's size
    is `expert_intermediate`.
    """

    architecture: str
    model_type: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    window: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def attention_width(self) -> int:
        """Inputs of the output projection."""
        return self.heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        inner = self.experts * self.expert_intermediate if self.experts else self.intermediate
        return attention + 3 * self.hidden * inner

    def config(self, *, vocab: int = 0, layers: int = 2, experts: int = 0) -> dict[str, Any]:
        """What config.json says of a model of this shape; `vocab` and `experts` instead of the published
        number where they are given."""
        sizes = {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": vocab or self.vocab,
            "num_hidden_layers": layers,
        }
        if self.window:
            sizes["sliding_window"] = self.window
        if self.experts:
            name = "num_experts" if self.model_type == "qwen3_moe" else "num_local_experts"
            sizes |= {name: experts or self.experts, "num_experts_per_tok": self.experts_per_token}
        common = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "dtype": "bfloat16",
            "max_position_embeddings": 8192,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
        }
        return {**common, **sizes, **self.fields}


def _shape(
    architecture: str, model_type: str, sizes: tuple[int, ...], fields: Mapping[str, Any], window: int = 0
) -> ServedShape:
    hidden, intermediate, heads, kv_heads, head_dim, vocab = sizes
    return ServedShape(
        architecture,
        model_type,
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        vocab,
        window=window,
        fields=fields,
    )


def _llama(*sizes: int, **fields: Any) -> ServedShape:
    return _shape("LlamaForCausalLM", "llama", sizes, {"rms_norm_eps": 1e-5, **fields})


def _llama3(*sizes: int, **fields: Any) -> ServedShape:
    return _llama(*sizes, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, **fields)


def _mistral(*sizes: int, window: int = 0) -> ServedShape:
    fields = {"rope_theta": 1e6, "rms_norm_eps": 1e-5} | ({} if window else {"sliding_window": None})
    return _shape("MistralForCausalLM", "mistral", sizes, fields, window)


def _qwen2(*sizes: int, tied: bool = False) -> ServedShape:
    fields = {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied}
    return _shape("Qwen2ForCausalLM", "qwen2", sizes, fields)


def _qwen3(*sizes: int, tied: bool = False) -> ServedShape:
    fields = {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied}
    return _shape("Qwen3ForCausalLM", "qwen3", sizes, fields)


def _gemma2(*sizes: int, scale: int) -> ServedShape:
    fields = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    }
    return _shape("Gemma2ForCausalLM", "gemma2", sizes, fields, 4096)


def _gemma3(*sizes: int, window: int) -> ServedShape:
    fields = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
    }
    return _shape("Gemma3ForCausalLM", "gemma3_text", sizes, fields, window)


def _phi3(*sizes: int, window: int = 0, **fields: Any) -> ServedShape:
    return _shape("Phi3ForCausalLM", "phi3", sizes, {"rms_norm_eps": 1e-5, **fields}, window)


# Each row: hidden, intermediate, heads, KV heads, head_dim, vocabulary.
SERVED: dict[str, ServedShape] = {
    "SmolLM2-135M": _llama(576, 1536, 9, 3, 64, 49152, rope_theta=100000.0, tie_word_embeddings=True),
    "SmolLM2-1.7B": _llama(2048, 8192, 32, 32, 64, 49152, rope_theta=130000.0, tie_word_embeddings=True),
    "TinyLlama-1.1B": _llama(2048, 5632, 32, 4, 64, 32000),
    "Llama-2-7B": _llama(4096, 11008, 32, 32, 128, 32000),
    "Llama-3.2-1B": _llama3(2048, 8192, 32, 8, 64, 128256, tie_word_embeddings=True),
    "Llama-3.2-3B": _llama3(3072, 8192, 24, 8, 128, 128256, tie_word_embeddings=True),
    "Llama-3.1-8B": _llama3(4096, 14336, 32, 8, 128, 128256),
    "Llama-3.3-70B": _llama3(8192, 28672, 64, 8, 128, 128256),
    "Mistral-7B-v0.1": _mistral(4096, 14336, 32, 8, 128, 32000, window=4096),
    "Mistral-Nemo-12B": _mistral(5120, 14336, 32, 8, 128, 131072),
    "Mistral-Small-24B": _mistral(5120, 32768, 32, 8, 128, 131072),
    "Mixtral-8x7B": ServedShape(
        "MixtralForCausalLM", "mixtral", 4096, 14336, 32, 8, 128, 32000,
        experts=8, experts_per_token=2, expert_intermediate=14336,
        fields={"rope_theta": 1e6, "rms_norm_eps": 1e-5, "sliding_window": None},
    ),
    "Qwen2.5-0.5B": _qwen2(896, 4864, 14, 2, 64, 151936, tied=True),
    "Qwen2.5-1.5B": _qwen2(1536, 8960, 12, 2, 128, 151936, tied=True),
    "Qwen2.5-3B": _qwen2(2048, 11008, 16, 2, 128, 151936, tied=True),
    "Qwen2.5-7B": _qwen2(3584, 18944, 28, 4, 128, 152064),
    "Qwen2.5-14B": _qwen2(5120, 13824, 40, 8, 128, 152064),
    "Qwen2.5-32B": _qwen2(5120, 27648, 40, 8, 128, 152064),
    "Qwen3-0.6B": _qwen3(1024, 3072, 16, 8, 128, 151936, tied=True),
    "Qwen3-1.7B": _qwen3(2048, 6144, 16, 8, 128, 151936, tied=True),
    "Qwen3-4B": _qwen3(2560, 9728, 32, 8, 128, 151936, tied=True),
    "Qwen3-8B": _qwen3(4096, 12288, 32, 8, 128, 151936),
    "Qwen3-32B": _qwen3(5120, 25600, 64, 8, 128, 151936),
    "Qwen3-30B-A3B": ServedShape(
        "Qwen3MoeForCausalLM", "qwen3_moe", 2048, 6144, 32, 4, 128, 151936,
        experts=128, experts_per_token=8, expert_intermediate=768,
        fields={"rope_theta": 1e6, "rms_norm_eps": 1e-6, "norm_topk_prob": True,
                "moe_intermediate_size": 768},
    ),
    "Gemma-2-2B": _gemma2(2304, 9216, 8, 4, 256, 256000, scale=256),
    "Gemma-2-9B": _gemma2(3584, 14336, 16, 8, 256, 256000, scale=256),
    "Gemma-3-270M": _gemma3(640, 2048, 4, 1, 256, 262144, window=512),
    "Gemma-3-1B": _gemma3(1152, 6912, 4, 1, 256, 262144, window=512),
    "Gemma-3-4B": _gemma3(2560, 10240, 8, 4, 256, 262208, window=1024),
    "Phi-3-mini": _phi3(3072, 8192, 32, 32, 96, 32064, window=2047),
    "Phi-4-mini": _phi3(3072, 8192, 24, 8, 128, 200064, partial_rotary_factor=0.75, tie_word_embeddings=True),
    "Phi-4": _phi3(5120, 17920, 40, 10, 128, 100352),
    "OLMo-2-7B": ServedShape(
        "Olmo2ForCausalLM", "olmo2", 4096, 11008, 32, 32, 128, 100352, fields={"rope_theta": 500000.0}
    ),
    "OLMo-3-7B": ServedShape(
        "Olmo3ForCausalLM", "olmo3", 4096, 11008, 32, 32, 128, 100278, window=4096,
        fields={"rope_theta": 500000.0, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "EXAONE-4-1.2B": ServedShape(
        "Exaone4ForCausalLM", "exaone4", 2048, 4096, 32, 8, 64, 102400,
        fields={"rope_theta": 1e6, "sliding_window": None, "layer_types": ["full_attention"] * 2,
                "tie_word_embeddings": True},
    ),
    "Granite-3.3-2B": ServedShape(
        "GraniteForCausalLM", "granite", 2048, 8192, 32, 8, 64, 49159,
        fields={"rope_theta": 1e7, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22, "logits_scaling": 8.0, "tie_word_embeddings": True},
    ),
    "Command-R7B": ServedShape(
        "Cohere2ForCausalLM", "cohere2", 4096, 14336, 32, 8, 128, 256000, window=4096,
        fields={"rope_theta": 50000.0, "logit_scale": 0.25, "tie_word_embeddings": True,
                "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "GLM-4-9B-0414": ServedShape(
        "Glm4ForCausalLM", "glm4", 4096, 13696, 32, 2, 128, 151552,
        fields={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                "attention_bias": False, "rms_norm_eps": 1e-5},
    ),
    "gpt-oss-20b": ServedShape(
        "GptOssForCausalLM", "gpt_oss", 2880, 2880, 64, 8, 64, 201088, window=128,
        experts=32, experts_per_token=4, expert_intermediate=2880,
        fields={"rope_theta": 150000.0, "rms_norm_eps": 1e-5,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                 "truncate": False, "original_max_position_embeddings": 4096}},
    ),
    "SmolLM3-3B": ServedShape(
        "SmolLM3ForCausalLM", "smollm3", 2048, 11008, 16, 4, 128, 128256,
        fields={"rope_theta": 5e6, "tie_word_embeddings": True, "no_rope_layers": [1, 0]},
    ),
}  # fmt: skip


def distinct(sizes: Callable[[ServedShape], Iterable[int]]) -> list[int]:
    """Each size that some shape of the table has, once, ascending."""
    return sorted({size for shape in SERVED.values() for size in sizes(shape)} - {0})


INPUT_WIDTHS = distinct(lambda s: (s.hidden, s.attention_width, s.intermediate, s.expert_intermediate))
VOCABULARIES = distinct(lambda s: (s.vocab,))
ATTENTION_SHAPES = sorted({(s.heads, s.kv_heads, s.head_dim) for s in SERVED.values()})
