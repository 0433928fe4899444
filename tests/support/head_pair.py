"""A draft head on the kernels, and the one in torch operations that says what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from shared.engine import load_model_config
from shared.engine.draft_head.config import DraftHeadConfig
from shared.engine.draft_head.native_head import NativeDraftHead
from shared.engine.draft_head.torch_head import TorchDraftHead
from shared.engine.draft_head.weights import load_draft_head
from shared.engine.native.library import library
from shared.engine.native.model import NativeModel
from shared.engine.scheduling.head_model import CONFIDENCE_BINS, DraftRequest, HeadDraft, TapRows
from shared.engine.torch_backend.model import TorchModel
from tests.support.draft_heads import save_head
from tests.support.engine import make_engine, save_random_model

ROWS = 9
SURE = [1.0] * CONFIDENCE_BINS


class HeadPair:
    """Both have the same codes. `fields` are those of the target."""

    def __init__(self, folder: Path, config: DraftHeadConfig, threads: int, **fields: Any) -> None:
        target = save_random_model(folder / "target", **fields)
        stated = load_model_config(target)
        weights = load_draft_head(save_head(folder / "head", config), stated, target).quantized()
        kernels, model = library(), make_engine(target, backend="native", kv_blocks=16)._model
        right = make_engine(target, backend="torch", kv_blocks=16)._model
        assert kernels is not None
        assert isinstance(model, NativeModel)
        assert isinstance(right, TorchModel)
        self._kernels = kernels
        self.ours = NativeDraftHead(kernels, weights, model, threads)
        self.right = TorchDraftHead(weights, right.embedding_of)
        generator = torch.Generator().manual_seed(4)
        self.taps: TapRows = (5 * torch.randn(ROWS, config.tap_width, generator=generator)).numpy()
        self._vocab = config.target_vocab_size

    def draft(self, requests: list[DraftRequest], taps: TapRows | None = None) -> list[HeadDraft]:
        """Return what the kernels guess, which find no numbers where they were before."""
        self._kernels.penstock_poison_draft_head(self.ours._handle)
        return self.ours.draft(self.taps if taps is None else taps, requests, SURE)

    def requests(self, temperature: float, length: int = 4) -> list[DraftRequest]:
        """Return one for each row of `taps`."""
        return [
            DraftRequest(slot, 31 * slot % self._vocab, 7 + slot, temperature, 2**64 - 1 - slot, length)
            for slot in range(ROWS)
        ]
