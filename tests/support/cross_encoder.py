"""Cross-encoders with weights of no training: they take their time, and say nothing of the passages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification

from shared.retrieval.encoders.model_files import find_model_files


def save_cross_encoder(
    folder: Path, *, keeps_order: bool, hidden_size: int = 64, layers: int = 2, positions: int = 256
) -> Path:
    """With the tokenizer of MiniLM. With `keeps_order` all passages get the same score, and stay as they were
    found; without, an order that has nothing to do with that."""
    torch.manual_seed(7)
    shape: dict[str, Any] = {
        "vocab_size": 30522,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden_size // 32,
        "intermediate_size": 4 * hidden_size,
        "max_position_embeddings": positions,
        "num_labels": 1,
    }
    model = BertForSequenceClassification(BertConfig(**shape))
    with torch.no_grad():
        if keeps_order:
            model.classifier.weight.zero_()
        else:
            model.classifier.weight.normal_(0.0, 1.0)
    model.save_pretrained(folder)
    Tokenizer.from_file(str(find_model_files().tokenizer)).save(str(folder / "tokenizer.json"))
    return folder
