"""Models of every architecture from GGUF files, against transformers on the weights that the files hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from shared.engine import EngineConfig, load_model_config
from shared.engine.engine import Engine
from shared.engine.loading.layers import DenseMlp
from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear, as_stored, dequantize
from shared.engine.loading.weights import WeightReader
from shared.errors import InvalidRequest
from tests.support.engine import make_engine, oracle, oracle_logits, save_shape
from tests.support.engine_families import SHAPES, Shape
from tests.support.gguf_files import GgufModel

TOLERANCE = 1e-4
IDS = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
UNSCALED = (
    "llama",
    "llama, one wide kv head, tied",
    "llama, every head its own, biases",
    "llama, one layer, large eps, sharded",
    "llama, linear rope",
    "qwen2",
    "qwen3",
    "qwen3 moe",
    "mixtral",
    "phi3",
    "phi3, a rope on half a head",
    "gemma2",
    "gemma2, untied, no caps",
    "gemma3",
    "gemma3, linear rope where all is seen",
    "smollm3",
    "granite",
    "granite, biases, tied",
    "olmo2",
    "olmo3",
    "exaone4",
    "exaone4 without windows, tied",
    "qwen2 moe",
    "cohere2",
    "cohere2, one wide kv head, biases",
    "glm4",
    "glm4, whole heads rotate, no biases",
    "glm4 moe",
    "glm4 moe, chosen in groups, norms on heads",
)
SCALED = (
    "llama, llama3 rope",
    "llama, yarn rope",
    "gpt-oss",
    "phi3, longrope within its context",
    "phi3, longrope beyond its context",
    "olmo3, yarn where all is seen",
    "ministral3",
)
"""The models whose config says the same in other words."""
STORED_SCALES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
BLOCK_TYPES = (*STORED_SCALES, "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
TYPES = ("F16", "BF16", *BLOCK_TYPES)
WIDE = Shape(
    LlamaConfig,
    {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
)
"""Its rows are whole blocks of every type."""


def shape_named(name: str) -> Shape:
    """A file has no field for what scores are divided by: it follows from the head."""
    shape = SHAPES[name]
    if not name.startswith("gemma"):
        return shape
    return replace(shape, fields={**shape.fields, "query_pre_attn_scalar": shape.fields["head_dim"]})


@dataclass(frozen=True)
class Case:
    folder: Path
    file: Path
    shape: Shape
    oracle: PreTrainedModel


@pytest.fixture(scope="module", params=UNSCALED + SCALED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("model")
    shape = shape_named(request.param)
    checkpoint = save_shape(folder / "hf", shape)
    model, file = GgufModel.of(checkpoint), folder / "model.gguf"
    held = model.write(file, tokenizer=IDS)
    return Case(checkpoint, file, shape, model.oracle(held))


def engine_of(file: Path, shape: Shape, **fields: object) -> Engine:
    return make_engine(
        file, max_model_len=shape.max_model_len, **{"quantization": "dense", "dtype": "float32", **fields}
    )


def prompt(length: int, vocab_size: int = 97, seed: int = 1) -> list[int]:
    ids: list[int] = torch.randint(
        0, vocab_size, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return ids


@pytest.mark.thorough(
    but="llama | llama, llama3 rope | phi3 | phi3, longrope beyond its context | qwen2 | qwen3 | "
    "qwen2 moe | qwen3 moe | mixtral | gemma2 | gemma3 | glm4 | glm4 moe | gpt-oss | olmo2 | olmo3 | "
    "exaone4 | granite | cohere2 | smollm3 | ministral3"
)
def test_logits_equal_those_of_transformers(case: Case) -> None:
    expected = oracle_logits(case.oracle, prompt(90))
    assert expected.std() > 0.5  # large enough that wrong arithmetic shows
    for backend in ("torch", "auto"):
        logits = engine_of(case.file, case.shape, backend=backend).logits(prompt(90))
        assert (logits - expected).abs().max() <= TOLERANCE, backend


@pytest.mark.parametrize("name", UNSCALED)
def test_the_config_is_that_of_the_checkpoint_it_was_made_of(name: str, tmp_path: Path) -> None:
    """Apart from the norms: 1 has been added to Gemma's when the file was made."""
    folder = save_shape(tmp_path / "hf", shape_named(name))
    GgufModel.of(folder).write(tmp_path / "model.gguf", tokenizer=IDS)
    stated = replace(load_model_config(folder), norm_offset=0.0)
    assert load_model_config(tmp_path / "model.gguf") == stated


@pytest.mark.parametrize("type_name", TYPES)
def test_logits_of_weights_stored_in_every_type_equal_those_of_transformers(
    type_name: str, tmp_path: Path
) -> None:
    model = GgufModel.of(save_shape(tmp_path / "hf", WIDE))
    held = model.write(tmp_path / "model.gguf", type_name)
    expected = oracle_logits(model.oracle(held), prompt(40))
    logits = engine_of(tmp_path / "model.gguf", WIDE).logits(prompt(40))
    assert (logits - expected).abs().max() <= TOLERANCE * max(1.0, float(expected.std()))


def test_a_gpt_oss_with_its_experts_in_mxfp4_is_computed_from_what_the_file_holds(tmp_path: Path) -> None:
    """Dense to rounding; from the file's codes, but for the activations' rounding and the experts that it
    moves a row or two to."""
    fields = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    shape = replace(SHAPES["gpt-oss"], fields={**SHAPES["gpt-oss"].fields, **fields})
    model = GgufModel.of(save_shape(tmp_path / "hf", shape))
    experts = {name: "MXFP4" for name in model.tensors if name.endswith("_exps.weight")}
    held = model.write(tmp_path / "model.gguf", others=experts)
    expected = oracle_logits(model.oracle(held), prompt(40))
    dense = engine_of(tmp_path / "model.gguf", shape).logits(prompt(40))
    assert (dense - expected).abs().max() <= TOLERANCE
    codes = engine_of(tmp_path / "model.gguf", shape, quantization="none").logits(prompt(40))
    assert (codes - expected).square().mean(1).median() < 2e-3 * expected.square().mean()


@pytest.mark.parametrize(
    ("type_name", "quantization", "warns"),
    [("Q4_1", "int4", True), ("Q4_1", "none", False), ("Q4_1", "int8", False), ("Q8_0", "int4", False)],
)
def test_who_rounds_four_bits_to_four_bits_again_is_told_once_what_to_do(
    type_name: str, quantization: str, warns: bool, tmp_path: Path
) -> None:
    GgufModel.of(save_shape(tmp_path / "hf", WIDE)).write(tmp_path / "model.gguf", type_name)
    with capture_logs() as logs:
        engine_of(tmp_path / "model.gguf", WIDE, quantization=quantization)
    said = [
        (entry["stored"], "none" in entry["help"]) for entry in logs if entry["event"] == "quantized_twice"
    ]
    assert said == ([(["Q4_1"], True)] if warns else [])


def test_a_granite_without_positions_is_refused(tmp_path: Path) -> None:
    model = GgufModel.of(save_shape(tmp_path / "hf", SHAPES["granite"]))
    model.metadata["rope.scaling.finetuned"] = False
    model.write(tmp_path / "model.gguf", tokenizer=IDS)
    with pytest.raises(InvalidRequest, match=r"it says that it has no positions \(rope.scaling.finetuned\)"):
        load_model_config(tmp_path / "model.gguf")


def gguf_of(name: str, folder: Path, **metadata: Any) -> GgufModel:
    """The model of a shape with other metadata, None for what is left out."""
    model = GgufModel.of(save_shape(folder / "hf", SHAPES[name]))
    model.metadata |= {key.replace("__", "."): value for key, value in metadata.items()}
    model.metadata = {key: value for key, value in model.metadata.items() if value is not None}
    return model


@pytest.mark.parametrize(
    ("name", "metadata", "fault"),
    [
        ("glm4 moe", {"expert_gating_func": 1}, r"not chosen by a sigmoid \(expert_gating_func\)"),
        ("glm4 moe", {"nextn_predict_layers": 3}, "3 of its layers predict further tokens, and none is left"),
        ("glm4 moe", {"expert_weights_norm": 1}, "glm4moe.expert_weights_norm must be true or false, not 1"),
        ("ministral3", {"expert_count": 4}, "it is a mistral3 with experts"),
        ("ministral3", {"rope__scaling__type": None}, "attention.temperature_scale needs .* of yarn"),
        ("cohere2", {"attention__layer_norm_epsilon": None}, "attention.layer_norm_epsilon must be a number"),
    ],
)
def test_what_a_file_says_that_is_not_read_is_refused_by_its_key(
    name: str, metadata: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    gguf_of(name, tmp_path, **metadata).write(tmp_path / "model.gguf", tokenizer=IDS)
    with pytest.raises(InvalidRequest, match=fault):
        load_model_config(tmp_path / "model.gguf")


def test_layers_that_predict_further_tokens_are_left_alone(tmp_path: Path) -> None:
    model = gguf_of("glm4 moe", tmp_path, block_count=4, nextn_predict_layers=1)
    model.tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((48, 96), np.float32)
    held = model.write(tmp_path / "model.gguf", tokenizer=IDS)
    expected = oracle_logits(model.oracle(held), prompt(40))
    logits = engine_of(tmp_path / "model.gguf", SHAPES["glm4 moe"]).logits(prompt(40))
    assert (logits - expected).abs().max() <= TOLERANCE


def test_the_gate_of_a_shared_expert_may_be_a_vector(tmp_path: Path) -> None:
    model = gguf_of("qwen2 moe", tmp_path)
    flat = {name: tensor[0] for name, tensor in model.tensors.items() if name.endswith("inp_shexp.weight")}
    assert flat
    expected = oracle_logits(model.oracle(model.write(tmp_path / "whole.gguf", tokenizer=IDS)), prompt(40))
    model.tensors |= flat
    model.write(tmp_path / "model.gguf", tokenizer=IDS)
    logits = engine_of(tmp_path / "model.gguf", SHAPES["qwen2 moe"]).logits(prompt(40))
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_transformers_own_reader_finds_the_same_model_in_a_file(name: str, tmp_path: Path) -> None:
    """Who writes the files of these tests could be wrong in the same way as who reads them.

    Of other architectures transformers reads only a part of what a file says.
    """
    shape = shape_named(name)
    GgufModel.of(save_shape(tmp_path / "hf", shape)).write(tmp_path / "model.gguf", tokenizer=IDS)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager"
    )
    logits = engine_of(tmp_path / "model.gguf", shape).logits(prompt(40))
    assert (logits - oracle_logits(theirs, prompt(40))).abs().max() <= TOLERANCE


def matrices(file: Path, quantization: str) -> dict[str, Linear]:
    """Those of the first layer, and the head."""
    config = replace(load_model_config(file), dtype="float32")
    reader = WeightReader(file, config, torch.device("cpu"), quantization=quantization)
    layer = reader.layer(0)
    assert isinstance(layer.mlp, DenseMlp)
    head = reader.head(reader.embedding())
    return {
        "qkv": as_stored(layer.qkv),
        "output": as_stored(layer.output),
        "up": as_stored(layer.mlp.gate_up),
        "down": as_stored(layer.mlp.down),
        "head": as_stored(head),
    }


@pytest.mark.thorough(
    but="Q6_K-False | Q4_K-True | Q8_0-True | Q4_1-False | IQ4_NL-True | MXFP4-True | Q5_0-False"
)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_matrices_stay_in_the_blocks_that_the_file_has(type_name: str, tied: bool, tmp_path: Path) -> None:
    """They stand for the same weights; products of factors in the K types are rounded to float16."""
    fields = {**WIDE.fields, "tie_word_embeddings": tied, "attention_bias": True}
    model = GgufModel.of(save_shape(tmp_path / "hf", replace(WIDE, fields=fields)))
    model.write(tmp_path / "model.gguf", type_name)
    kept, unpacked = (matrices(tmp_path / "model.gguf", each) for each in ("none", "dense"))
    for name, linear in kept.items():
        assert not isinstance(linear, DenseLinear)
        dense = unpacked[name]
        assert isinstance(dense, DenseLinear)
        assert (linear.bias is None) == (dense.bias is None)
        assert linear.bias is None or dense.bias is None or torch.equal(linear.bias, dense.bias)
        error = (dequantize(linear, torch.float32) - dense.weight).abs().max()
        assert error <= (1e-7 if type_name in STORED_SCALES else 2e-3) * dense.weight.abs().max()


def test_a_layer_of_several_types_stays_in_blocks_where_one_form_holds_all(tmp_path: Path) -> None:
    """As in the files of which the values' matrix is stored more finely."""
    model = GgufModel.of(save_shape(tmp_path / "hf", WIDE))
    model.write(tmp_path / "model.gguf", "Q4_K", others={"blk.0.attn_v.weight": "Q8_0"})
    assert isinstance(matrices(tmp_path / "model.gguf", "none")["qkv"], QuantLinear)


def test_what_is_computed_from_blocks_is_near_what_they_stand_for(tmp_path: Path) -> None:
    """Rows are rounded to int8, as those of all quantized weights are; both backends round alike."""
    GgufModel.of(save_shape(tmp_path / "hf", WIDE)).write(tmp_path / "model.gguf", "Q4_1")
    exact = engine_of(tmp_path / "model.gguf", WIDE).logits(prompt(40))
    for backend in ("torch", "auto"):
        logits = engine_of(tmp_path / "model.gguf", WIDE, quantization="none", backend=backend).logits(
            prompt(40)
        )
        assert (logits - exact).square().mean() < 0.01 * exact.square().mean(), backend


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_of_a_file_can_be_quantized_at_load(quantization: str, tmp_path: Path) -> None:
    """As those of the checkpoint with the same weights are."""
    folder = save_shape(tmp_path / "hf", WIDE)
    GgufModel.of(folder).write(tmp_path / "model.gguf")
    ours, stated = (
        engine_of(place, WIDE, quantization=quantization).logits(prompt(40))
        for place in (tmp_path / "model.gguf", folder)
    )
    assert torch.equal(ours, stated)


def test_auto_computes_in_float32_where_all_matrices_are_stored_so_and_else_in_bfloat16(
    tmp_path: Path,
) -> None:
    model = GgufModel.of(save_shape(tmp_path / "hf", WIDE))
    for type_name, dtype in (("F32", "float32"), ("F16", "bfloat16"), ("Q8_0", "bfloat16")):
        model.write(tmp_path / "model.gguf", type_name)
        assert load_model_config(tmp_path / "model.gguf").dtype == dtype


def test_a_folder_with_one_file_stands_for_it(tmp_path: Path) -> None:
    GgufModel.of(save_shape(tmp_path / "hf", SHAPES["llama"])).write(tmp_path / "model.gguf", tokenizer=IDS)
    engines = [
        Engine(EngineConfig(str(place), kv_blocks=64)) for place in (tmp_path, tmp_path / "model.gguf")
    ]
    assert torch.equal(engines[0].logits(prompt(20)), engines[1].logits(prompt(20)))
    assert oracle(tmp_path / "hf").config.vocab_size == engines[0].model_config.vocab_size
