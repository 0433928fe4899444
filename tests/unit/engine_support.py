"""What the engine's tests share: checkpoints, the transformers oracle, and a driver that checks integrity."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from shared.engine import Engine, EngineConfig, SamplingParams, TokenOutput

REPOSITORY = Path(__file__).resolve().parents[2]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
# Everything the sampler can do at once.
FANCY = SamplingParams(
    temperature=0.9,
    top_k=60,
    top_p=0.95,
    min_p=0.002,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias=((5, 2.0), (9, -3.0)),
    seed=11,
    max_tokens=40,
    min_tokens=10,
    stop_token_ids=(7,),
)

torch.set_num_threads(1)


def trained_model() -> Path | None:
    """The real trained checkpoint, where the shared test data is at hand."""
    data = Path(os.environ.get("PENSTOCK_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    folder = data / "stories260k"
    return folder if folder.is_dir() else None


def save_random_model(
    folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: Any
) -> Path:
    """A Llama checkpoint with random weights large enough that logits differ clearly."""
    fields: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        **shape,
    }
    save_options = {"max_shard_size": fields.pop("max_shard_size")} if "max_shard_size" in fields else {}
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder, **save_options)
    return folder


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    return model  # from_pretrained leaves it in evaluation mode


def oracle_logits(model: LlamaForCausalLM, token_ids: Sequence[int]) -> torch.Tensor:
    """float32 [len(token_ids), vocab]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits.float()


def oracle_greedy(model: LlamaForCausalLM, token_ids: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens; end tokens do not end it."""
    ids = torch.tensor([list(token_ids)])
    out = []
    with torch.inference_mode():
        result = model(ids, use_cache=True)
        for _ in range(count):
            token = result.logits[0, -1].argmax().item()
            out.append(token)
            result = model(torch.tensor([[token]]), past_key_values=result.past_key_values, use_cache=True)
    return out


def prompts(count: int, vocab_size: int, *, seed: int = 1, longest: int = 60) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def make_engine(folder: Path, **fields: Any) -> Engine:
    return Engine(EngineConfig(str(folder), **{"kv_blocks": 64, "max_sequences": 16, **fields}))


def admit(engine: Engine, key: str, token_ids: Sequence[int], params: SamplingParams = GREEDY) -> None:
    engine.admit(key, token_ids, len(token_ids), params)


Drafter = Callable[[str, list[int]], Sequence[int]]


def drive(
    engine: Engine,
    known: dict[str, list[int]],
    drafter: Drafter | None = None,
    outputs: list[TokenOutput] | None = None,
) -> dict[str, list[int]]:
    """Step until nothing is left to do, checking integrity each time; `known` tokens grow by what is drawn.

    Also checks that positions are absolute and contiguous. Returns what was drawn by key.
    """
    drawn: dict[str, list[int]] = {key: [] for key in known}
    while engine.has_work:
        if drafter is not None:
            for key, tokens in known.items():
                engine.propose(key, len(tokens), drafter(key, tokens))
        for output in engine.step().outputs:
            assert output.position == len(known[output.key])
            known[output.key] += output.token_ids
            drawn[output.key] += output.token_ids
            if outputs is not None:
                outputs.append(output)
        engine.check()
    return drawn


def generate(
    engine: Engine, token_ids: Sequence[int], params: SamplingParams = GREEDY, drafter: Drafter | None = None
) -> list[int]:
    """One sequence on an otherwise idle engine."""
    admit(engine, "alone", token_ids, params)
    return drive(engine, {"alone": list(token_ids)}, drafter)["alone"]
