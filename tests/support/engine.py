"""What the engine's tests share: checkpoints, the transformers oracle, and a driver that checks integrity."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

from shared.engine import Engine, EngineConfig, SamplingParams, TokenOutput
from shared.engine.batch import Batch, Model, Span
from shared.engine.memory.kv_pool import KvPool
from shared.engine.native.library import library
from tests.support.data import data_dir
from tests.support.engine_families import BASE_FIELDS, SHAPES, Shape
from tests.support.made_once import MadeOnce

BACKENDS = ("torch", "native") if library() is not None else ("torch",)
"""The backends that compute on this CPU."""
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

DECODED = 20
"""Steps of one token, over the end of a block and out of windows: more of them would show no more."""
VERIFIED = 4
"""Times that drafts of each length are verified."""

MADE = MadeOnce("checkpoints")

torch.set_num_threads(1)


def trained_model() -> Path | None:
    """The real trained checkpoint, where the shared test data is at hand."""
    data = data_dir()
    return data / "stories260k" if data is not None else None


def save_random_model(
    folder: Path,
    config_class: type[PreTrainedConfig] = LlamaConfig,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    save_options: dict[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """A checkpoint with random weights large enough that logits differ clearly; `fields` over BASE_FIELDS.

    It is a copy: the same is made once for all tests.
    """
    asked = {**BASE_FIELDS, **fields}
    options = save_options or {}
    name = repr((config_class.__qualname__, seed, dtype, sorted(options.items()), sorted(asked.items())))

    def make(made: Path) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random_model(config_class(**asked), dtype).save_pretrained(made, **options)

    MADE.copy(name, folder, make)
    return folder


def random_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # transformers
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # A sink then takes about as much as twenty keys.
            parameter.normal_(1.0 if "norm" in name else 3.0 if name.endswith("sinks") else 0.0, 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # a weight, though no parameter
                buffer.normal_(0.0, 0.2)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


def save_shape(folder: Path, shape: Shape, dtype: torch.dtype = torch.float32) -> Path:
    return save_random_model(
        folder, shape.config_class, dtype=dtype, save_options=shape.save_options, **shape.fields
    )


FAMILIES: dict[str, Callable[[Path], Path]] = {
    name: partial(lambda shape, folder: save_shape(folder, shape), shape) for name, shape in SHAPES.items()
}
"""Name of a shape -> what saves its checkpoint in a folder and returns that."""


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    # Of what transformers has, only eager attention knows soft-caps and only eager experts any width.
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )
    return model  # from_pretrained leaves it in evaluation mode


def oracle_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """float32 [len(token_ids), vocab]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits.float()


def oracle_logits_of(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The same of several prompts at once: no row sees what fills the shorter ones up behind it."""
    longest = max(map(len, prompts))
    filled = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    with torch.inference_mode():
        logits = model(filled).logits.float()
    return [own[: len(prompt)] for own, prompt in zip(logits, prompts, strict=True)]


def oracle_greedy(
    model: PreTrainedModel, token_ids: Sequence[int], count: int, guess: Sequence[int] = ()
) -> list[int]:
    """`count` greedy tokens; end tokens do not end it.

    As far as `guess` is right, one pass over all of it takes the place of a step for each token.
    """
    guess = guess[: count - 1]
    chosen = oracle_logits(model, [*token_ids, *guess])[len(token_ids) - 1 :].argmax(-1).tolist()
    right = next((at for at, token in enumerate(guess) if token != chosen[at]), len(guess))
    out: list[int] = chosen[: right + 1]
    with torch.inference_mode():
        cache = None
        while len(out) < count:
            ids = out[-1:] if cache else [*token_ids, *out]
            result = model(torch.tensor([ids]), cache=cache, use_cache=True)
            cache = result.cache
            out.append(result.logits[0, -1].argmax().item())
    return out


def logits_by_path(model: Model, tokens: Sequence[int], others: Sequence[int]) -> dict[str, torch.Tensor]:
    """float32 [len(tokens), vocab] of the same tokens, computed in each way in which an engine does it.

    `others` is another sequence, which shares the batches of all paths but the first. Writes into the first
    64 blocks of each group's share of the pool, so at most 512 tokens each.
    """
    count = len(tokens)
    paths = {
        "whole prompt": [count],
        "chunks": _sizes(count, [17, 3, 31, 16]),
        "decode": _sizes(count, [count // 2, *[1] * DECODED, max(0, count - count // 2 - DECODED - 2), 1, 1]),
        "verify drafts": _sizes(count, [count // 3, *[5, 2, 1] * VERIFIED, count]),
    }
    return {
        path: _logits_in_steps(model, tokens, sizes, [] if path == "whole prompt" else others)
        for path, sizes in paths.items()
    }


def _logits_in_steps(
    model: Model, tokens: Sequence[int], sizes: Sequence[int], others: Sequence[int]
) -> torch.Tensor:
    """`tokens` in spans of `sizes`, beside them `others` in short and long ones; they come first in some."""
    pool: KvPool = vars(model)["_pool"]
    # Neighbours in the pool belong to different sequences.
    own, other = tables_in(pool, range(1, 64, 2)), tables_in(pool, range(0, 64, 2))
    rows, start, other_start = [], 0, 0
    for step, size in enumerate(sizes):
        spans, ids = [Span(start, size, own)], list(tokens[start : start + size])
        start += size
        first = 0
        taken = min([1, 19, 4][step % 3], len(others) - other_start)
        if taken:
            theirs = Span(other_start, taken, other)
            their_ids = list(others[other_start : other_start + taken])
            other_start += taken
            if step % 2:
                spans, ids = [*spans, theirs], ids + their_ids
            else:
                spans, ids, first = [theirs, *spans], their_ids + ids, taken
        rows.append(model.forward(Batch(ids, spans, range(first, first + size))).clone())
    return torch.cat(rows)


def tables_in(pool: KvPool, blocks: Sequence[int]) -> list[list[int]]:
    """A sequence's blocks by group of layers: each group has its share of the pool, and there `blocks`."""
    share = pool.num_blocks // pool.layout.groups.count
    return [
        [block if block < 0 else group * share + block for block in blocks]
        for group in range(pool.layout.groups.count)
    ]


def _sizes(total: int, wanted: Sequence[int]) -> list[int]:
    """`wanted`, again and again without its zeros, cut to a sum of `total`."""
    sizes: list[int] = []
    for size in itertools.cycle(filter(None, wanted)):
        if sum(sizes) == total:
            break
        sizes.append(min(size, total - sum(sizes)))
    return sizes


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


def undisturbed(
    folder: Path, token_ids: Sequence[int], params: SamplingParams = GREEDY, **fields: Any
) -> list[int]:
    """Return what an engine that has nothing else to do draws: computed once for all tests that expect it.

    `folder` holds the same model for as long as tests run, as fixtures of modules and sessions make it.
    """
    return [*_undisturbed(Engine, folder, tuple(token_ids), params, **fields)]


@lru_cache(maxsize=4096)
def _undisturbed(
    kind: Callable[..., Engine],
    folder: Path,
    token_ids: tuple[int, ...],
    params: SamplingParams,
    **fields: Any,
) -> tuple[int, ...]:
    """`kind` is what makes an engine: of a simulated one another answer is expected."""
    return tuple(generate(make_engine(folder, **fields), token_ids, params))
