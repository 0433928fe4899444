"""Architectures that people ask for and that are not read, with what it would take."""

from __future__ import annotations

_STATE = "a state per sequence instead of KV, which no pool, transfer or prefix cache here holds yet"
_DELTA_NET = f"linear-attention layers keep {_STATE}"
_CONVOLUTION = f"short-convolution layers keep {_STATE}"
_MAMBA = f"Mamba layers keep {_STATE}"
_GEMMA3N = (
    "its layers share KV with earlier ones, run four residual streams (AltUp) and read an embedding per "
    "layer, for which a layer here has no place"
)
_SPARSE_ATTENTION = (
    "its attention reads the tokens that an indexer chooses, whose keys would be a second pool beside KV"
)
REFUSED: dict[str, str] = {
    "DeepseekV32ForCausalLM": _SPARSE_ATTENTION,
    "Qwen3NextForCausalLM": _DELTA_NET,
    "Qwen3_5ForCausalLM": _DELTA_NET,
    "Qwen3_5ForConditionalGeneration": _DELTA_NET,
    "Qwen3_5MoeForCausalLM": _DELTA_NET,
    "Qwen3_5MoeForConditionalGeneration": _DELTA_NET,
    "Lfm2ForCausalLM": _CONVOLUTION,
    "Lfm2MoeForCausalLM": _CONVOLUTION,
    "MambaForCausalLM": _MAMBA,
    "Mamba2ForCausalLM": _MAMBA,
    "FalconH1ForCausalLM": _MAMBA,
    "NemotronHForCausalLM": _MAMBA,
    "Gemma3nForCausalLM": _GEMMA3N,
    "Gemma3nForConditionalGeneration": _GEMMA3N,
}
"""The reasons by the name that config.json has in `architectures[0]`."""
