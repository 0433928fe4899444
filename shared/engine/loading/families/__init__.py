"""The model families that the engine runs: one file each, and the register of them by architecture.

To add one: a file with a `FAMILY` (how its config becomes a ModelConfig, what its tensors are called), its
line below, and shapes of it in the tests' matrix, which compares every backend with transformers.
"""

from __future__ import annotations

from shared.engine.loading.families import (
    cohere2,
    deepseek,
    exaone4,
    gemma2,
    gemma3,
    glm4,
    glm4_moe,
    gpt_oss,
    granite,
    llama,
    ministral,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
)
from shared.engine.loading.families.family import Family
from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.families.refused import REFUSED
from shared.errors import InvalidRequest

FAMILIES: dict[str, Family] = {
    family.architecture: family
    for family in (
        llama.FAMILY,
        mistral.FAMILY,
        qwen2.FAMILY,
        qwen3.FAMILY,
        smollm3.FAMILY,
        phi3.FAMILY,
        gemma2.FAMILY,
        gemma3.FAMILY,
        gemma3.FAMILY_WITH_VISION,
        olmo2.FAMILY,
        olmo3.FAMILY,
        exaone4.FAMILY,
        granite.FAMILY,
        granite.HYBRID,
        cohere2.FAMILY,
        glm4.FAMILY,
        glm4.FAMILY_WITH_POST_NORMS,
        ministral.FAMILY,
        ministral.MINISTRAL3,
        ministral.MISTRAL3_WITH_VISION,
        mixtral.FAMILY,
        qwen2_moe.FAMILY,
        qwen3_moe.FAMILY,
        deepseek.V2,
        deepseek.V3,
        glm4_moe.FAMILY,
        glm4_moe.LITE,
        gpt_oss.FAMILY,
    )
}
SUPPORTED_ARCHITECTURES = tuple(FAMILIES)


def find_family(architecture: object) -> Family:
    """The family of what config.json calls `architectures[0]`. Raises InvalidRequest, naming all."""
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if isinstance(architecture, str) and architecture in REFUSED:
        raise InvalidRequest(f"architecture {architecture} is not supported: {REFUSED[architecture]}")
    if family is None:
        raise InvalidRequest(
            f"architecture {shown(architecture)} is not supported; "
            f"use one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return family
