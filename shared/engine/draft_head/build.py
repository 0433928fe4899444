"""Make the draft head that goes with a backend."""

from __future__ import annotations

from shared.engine.batch import Model, Taps
from shared.engine.draft_head.native_head import NativeDraftHead
from shared.engine.draft_head.torch_head import TorchDraftHead
from shared.engine.draft_head.weights import load_draft_head
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.model_config import ModelConfig
from shared.engine.native.model import NativeModel
from shared.engine.scheduling.head_model import HeadModel
from shared.engine.torch_backend.model import TorchModel
from shared.errors import InvalidRequest


def build_draft_head(
    config: EngineConfig, model_config: ModelConfig, model: Model
) -> tuple[HeadModel, Taps] | None:
    """Return the head that `config` names, and what it reads of every step; None where it names none.

    Raises as `load_draft_head` does.
    """
    if not config.draft_head:
        return None
    weights = load_draft_head(config.draft_head, model_config, config.model_dir)
    taps = Taps(weights.config.tap_layers, model_config.hidden_size)
    if isinstance(model, NativeModel):
        return NativeDraftHead(model.kernels, weights.quantized(), model, config.threads), taps
    if isinstance(model, TorchModel):
        return TorchDraftHead(weights, model.embedding_of), taps
    raise InvalidRequest("this backend computes no draft head; leave draft_head out, or use device cpu")
