"""The C++ backend where shapes, numbers, threads or libraries are unusual."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import shared.engine.native.library as native_library
from shared.engine.batch import Batch, Span
from shared.engine.loading.layers import DenseMlp, LayerWeights, ModelWeights, MoeMlp
from shared.engine.loading.linear import DenseLinear
from shared.engine.loading.model_config import LayerConfig, ModelConfig, MoeConfig
from shared.engine.loading.quantize import quantize
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.native.library import library, load
from shared.engine.native.model import NativeModel
from shared.engine.native.packing import packed_parts
from shared.engine.torch_backend.model import TorchModel
from shared.errors import InternalError
from tests.support.data import REPOSITORY
from tests.support.engine import make_engine, save_random_model

HIDDEN, INNER, VOCAB, BLOCKS, POSITIONS = 40, 36, 50, 8, 128

pytestmark = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)


def dense(out: int, width: int, seed: int) -> DenseLinear:
    generator = torch.Generator().manual_seed(seed)
    return DenseLinear(torch.randn(out, width, generator=generator) * width**-0.5)


def dense_mlp(seed: int) -> DenseMlp:
    return DenseMlp(dense(2 * INNER, HIDDEN, seed), dense(HIDDEN, INNER, seed + 1))


def both_models(
    mlp: DenseMlp | MoeMlp,
    moe: MoeConfig | None = None,
    kv_dtype: str = "auto",
    sinks: torch.Tensor | None = None,
    **fields: Any,
) -> tuple[NativeModel, TorchModel]:
    """One layer with random weights, on either backend."""
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, **fields}
    config = ModelConfig(
        "test", VOCAB, HIDDEN, INNER, rms_norm_eps=1e-6, layers=(LayerConfig(None, moe=moe),),
        max_position_embeddings=POSITIONS, tie_word_embeddings=False, dtype="float32", bos_token_id=None,
        eos_token_ids=(0,), **shape,
    )  # fmt: skip
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    norm = torch.ones(HIDDEN)
    qkv, output = dense(queries + 2 * keys, HIDDEN, 1), dense(HIDDEN, queries, 2)
    layer = LayerWeights(norm, qkv, None, None, output, None, norm, mlp, None, sinks)
    embedding, head = dense(VOCAB, HIDDEN, 3).weight, dense(VOCAB, HIDDEN, 4)
    pools = [KvPool(KvLayout.of(config, kv_dtype), BLOCKS, compute_dtype=torch.float32) for _ in range(2)]
    kernels = library()
    assert kernels is not None
    parts = packed_parts(kernels, config, [layer], embedding=embedding, head=head, final_norm=norm)
    native = NativeModel(kernels, config, dict(parts), pool=pools[0], num_positions=POSITIONS, threads=2)
    weights = ModelWeights(embedding, (layer,), norm, head)
    return native, TorchModel(config, weights, pools[1], POSITIONS)


def whole_prompt(on_kv_written: Callable[[int], None] | None = None) -> Batch:
    return Batch(range(40), [Span(0, 40, [range(BLOCKS)])], range(40), on_kv_written)


def test_more_heads_per_kv_head_than_an_item_of_attention_has_rows() -> None:
    native, reference = both_models(dense_mlp(5), num_heads=256, num_kv_heads=1)
    torch.testing.assert_close(
        native.forward(whole_prompt()), reference.forward(whole_prompt()), rtol=0, atol=1e-4
    )


def test_invariant_5_many_rows_of_experts_in_4_bits_are_what_few_are() -> None:
    """A matrix unit takes many rows, and an expert may have some or many of those that there are."""
    experts = tuple(
        DenseMlp(
            quantize(dense(2 * INNER, HIDDEN, seed), 4, 32), quantize(dense(HIDDEN, INNER, seed + 1), 4, 32)
        )
        for seed in (0, 10, 20)
    )
    moe = MoeConfig(num_experts=3, experts_per_token=2, intermediate_size=INNER, normalize=True)
    native, _ = both_models(MoeMlp(dense(3, HIDDEN, 6).weight, experts), moe)
    ids = [(7919 * place + 13) % VOCAB for place in range(POSITIONS)]
    together = native.forward(Batch(ids, [Span(0, POSITIONS, [range(BLOCKS)])], range(POSITIONS))).clone()
    for start in range(0, POSITIONS, 16):
        few = Batch(ids[start : start + 16], [Span(start, 16, [range(BLOCKS)])], range(16))
        assert torch.equal(native.forward(few), together[start : start + 16])


@pytest.mark.parametrize("packed", ["the first", "the last"])
def test_experts_of_which_a_checkpoint_packed_only_some(packed: str) -> None:
    experts = [dense_mlp(10 * number) for number in range(3)]
    place = 0 if packed == "the first" else -1
    experts[place] = DenseMlp(
        quantize(dense(2 * INNER, HIDDEN, 7), 8, 32), quantize(dense(HIDDEN, INNER, 8), 8, 32)
    )
    moe = MoeConfig(num_experts=3, experts_per_token=2, intermediate_size=INNER, normalize=True)
    native, reference = both_models(MoeMlp(dense(3, HIDDEN, 6).weight, tuple(experts)), moe)
    ours, theirs = native.forward(whole_prompt()), reference.forward(whole_prompt())
    assert (ours - theirs).abs().mean() <= 0.02 * theirs.std()  # torch rounds the rows of packed experts


ROUTINGS: dict[str, dict[str, Any]] = {
    "the groups with the best expert": {"num_groups": 4, "groups_per_token": 2},
    "a bias on softmax scores": {"choice_bias": True, "normalize": True},
    "a bias, and the groups with the two best": {
        "scores": "sigmoid", "choice_bias": True, "num_groups": 3, "groups_per_token": 1, "group_best": 2,
    },
    "more experts than one of a token's groups has": {
        "scores": "sigmoid", "num_groups": 6, "groups_per_token": 3, "group_best": 2, "experts_per_token": 5,
    },
}  # fmt: skip


def mixture(**fields: Any) -> tuple[MoeMlp, MoeConfig]:
    """Twelve experts, and how they are chosen."""
    chosen: dict[str, Any] = {"experts_per_token": 3, "normalize": False, "scale": 1.5, **fields}
    config = MoeConfig(num_experts=12, intermediate_size=INNER, **chosen)
    experts = tuple(dense_mlp(10 * number) for number in range(12))
    bias = dense(1, 12, 9).weight[0] if config.choice_bias else None
    return MoeMlp(dense(12, HIDDEN, 6).weight, experts, bias), config


@pytest.mark.parametrize("name", ROUTINGS)
def test_experts_are_chosen_as_torch_chooses_them(name: str) -> None:
    native, reference = both_models(*mixture(**ROUTINGS[name]))
    torch.testing.assert_close(
        native.forward(whole_prompt()), reference.forward(whole_prompt()), rtol=0, atol=1e-4
    )


def test_a_shared_expert_of_another_format_than_the_experts() -> None:
    mlp, config = mixture(shared_intermediate_size=INNER, shared_gate=True)
    shared = DenseMlp(quantize(dense(2 * INNER, HIDDEN, 7), 8, 32), quantize(dense(HIDDEN, INNER, 8), 8, 32))
    mlp = replace(mlp, shared=shared, shared_gate=dense(1, HIDDEN, 5).weight)
    native, reference = both_models(mlp, config)
    ours, theirs = native.forward(whole_prompt()), reference.forward(whole_prompt())
    assert (ours - theirs).abs().mean() <= 0.02 * theirs.std()  # torch rounds the rows of packed experts


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_router_that_is_no_number_for_one_expert_gives_logits_that_are_none(scores: str) -> None:
    mlp, config = mixture(scores=scores, choice_bias=True)
    mlp.router[11] = torch.nan
    native, _ = both_models(mlp, config)
    assert native.forward(whole_prompt()).isnan().all()


@pytest.mark.parametrize("score", [-1e4, 0.0, 60.0, 1e4])
def test_sinks_far_below_and_above_all_scores(score: float) -> None:
    """From one that takes nothing to one that leaves nothing to the keys."""
    native, reference = both_models(dense_mlp(5), attention_sinks=True, sinks=torch.full((4,), score))
    ours, theirs = native.forward(whole_prompt()), reference.forward(whole_prompt())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_a_gate_that_is_no_number_is_none_after_it_was_clamped() -> None:
    broken = dense_mlp(5)
    assert isinstance(broken.gate_up, DenseLinear)
    broken.gate_up.weight[[3, INNER + 5]] = torch.nan
    for part in (broken, dense_mlp(5)):
        native, _ = both_models(part, activation="clamped_swiglu", swiglu_limit=0.5)
        assert native.forward(whole_prompt()).isnan().all().item() is (part is broken)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_a_weight_that_is_no_number_gives_logits_that_are_none(cap: float, kv_dtype: str) -> None:
    """Not numbers that look like any others: the sampler finds them out only as NaN."""
    broken = dense_mlp(5)
    assert isinstance(broken.gate_up, DenseLinear)
    broken.gate_up.weight[3] = torch.nan
    native, _ = both_models(broken, kv_dtype=kv_dtype, logit_softcap=cap, attention_softcap=cap)
    assert native.forward(whole_prompt()).isnan().all()


def test_what_a_listener_raises_comes_out_of_the_forward_pass() -> None:
    native, _ = both_models(dense_mlp(5))

    def listener(layer: int) -> None:
        raise ValueError(f"layer {layer}")

    with pytest.raises(ValueError, match="layer 0"):
        native.forward(whole_prompt(listener))
    assert native.forward(whole_prompt()).isfinite().all()


def test_an_empty_batch_gives_no_logits() -> None:
    native, _ = both_models(dense_mlp(5))
    assert native.forward(Batch([], [], [])).shape == (0, VOCAB)


def test_a_larger_batch_than_any_before_gives_what_it_gives_alone() -> None:
    native, _ = both_models(dense_mlp(5))
    last = native.forward(Batch([7], [Span(0, 1, [[0]])], [0])).clone()
    many = native.forward(Batch([7] * 64, [Span(0, 1, [[block % BLOCKS]]) for block in range(64)], range(64)))
    assert torch.equal(many, last.expand(64, -1))


def in_another_process(folder: Path, code: str, before: str = "", **environment: str) -> str:
    lines = f"""
import ctypes, threading
{before}
from shared.engine import Engine, EngineConfig
engine = Engine(EngineConfig({str(folder)!r}, backend="native", kv_blocks=64, threads=3))
{code}
"""
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=REPOSITORY, env={**os.environ, **environment}, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


NO_MORE_THREADS = """
libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
libc.pthread_attr_init(attributes)
libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46))  # more than there can be
assert libc.pthread_setattr_default_np(attributes) == 0
"""


def test_where_no_thread_can_be_started_one_does_all_of_the_work(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    code = "print(engine.logits([1, 2, 3]).tolist())"
    alone = in_another_process(folder, code, NO_MORE_THREADS, OMP_THREAD_LIMIT="1")
    together = make_engine(folder, backend="native", threads=3).logits([1, 2, 3])
    assert alone == f"{together.tolist()}\n"


@pytest.mark.thorough
def test_a_process_ends_while_a_daemon_thread_computes(tmp_path: Path) -> None:
    """In kernels alone: an operation of torch that ends then ends the process with an abort of its own."""
    code = """
import torch
from shared.engine.loading.linear import DenseLinear
from shared.engine.native.library import library
from shared.engine.native.linear import NativeLinear
linear = NativeLinear.pack(library(), DenseLinear(torch.randn(64, 64)))
rows, out = torch.randn(256, 64), torch.empty(256, 64)
addresses, begun = (rows.data_ptr(), out.data_ptr()), threading.Event()
def work():
    while True:
        library().penstock_multiply(linear.handle, addresses[0], 256, 3, addresses[1])
        begun.set()
threading.Thread(target=work, daemon=True).start()
assert begun.wait(60)
"""
    in_another_process(save_random_model(tmp_path), code)


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = library()
    assert kernels is not None
    monkeypatch.setattr(native_library, "ABI", native_library.ABI + 1)
    with pytest.raises(InternalError, match="built from other sources; run `make setup`"):
        load(Path(kernels._name))


def test_a_library_without_our_functions_is_refused() -> None:
    other = Path(torch.__file__).parent / "lib" / "libc10.so"
    with pytest.raises(InternalError, match="built from other sources; run `make setup`"):
        load(other)


def test_a_damaged_library_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "_kernels.so"
    damaged.write_bytes(b"\x7fELF and no more")
    with pytest.raises(InternalError, match="cannot be loaded"):
        load(damaged)
