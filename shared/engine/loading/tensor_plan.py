"""Plan the tensors that make up a model: their names in the checkpoint, their shapes, and how they are
stacked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from shared.engine.loading.config import ModelConfig, MoeConfig
from shared.engine.loading.families import find_family
from shared.engine.loading.packed_checkpoints import PackedFormat, TensorSpec, packed_format
from shared.engine.loading.packed_checkpoints.mxfp4 import Mxfp4Format

READABLE_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class Matrix:
    """The matrix that one multiplication uses: the `weight` of all `modules`, one below the other."""

    modules: tuple[str, ...]
    num_out: tuple[int, ...]  # of each module
    num_in: int
    has_bias: bool = False


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """The experts of a layer in two tensors, as some exports have them, with their biases in two more.

    `interleaved`: each gate is followed by its partner, and what is not packed is stored transposed.
    """

    gate_up: str  # [experts, 2 * intermediate, hidden]
    down: str  # [experts, hidden, intermediate]
    interleaved: bool

    def bias(self, name: str) -> str:
        """[experts, outputs of `name`]"""
        return f"{name}_bias"


class TensorPlan:
    """Names and shapes for `config`, given the `names` that its checkpoint holds.

    Raises InvalidRequest for a packed format that cannot be read.
    """

    def __init__(self, config: ModelConfig, names: Collection[str]) -> None:
        self._config = config
        self._stored = names
        self._family = find_family(config.architecture)
        self.packed: PackedFormat | None = packed_format(config.quantization) if config.quantization else None
        self.embedding = self._family.prefix + "embed_tokens.weight"
        self.final_norm = self._family.prefix + "norm.weight"
        self.head = Matrix((self._family.head,), (config.vocab_size,), config.hidden_size)

    # --- one layer ---

    def norms(self, layer: int) -> dict[str, tuple[str, int]]:
        """Name and size of each norm of `LayerWeights` that the model has."""
        config, names = self._config, self._family.names
        found: dict[str, tuple[str, int]] = {}
        if config.norms == "shared":
            found["attention_in_norm"] = names.attention_in_norm, config.hidden_size
        if config.norms in ("pre", "both"):
            found["attention_in_norm"] = names.attention_in_norm, config.hidden_size
            found["mlp_in_norm"] = names.mlp_in_norm, config.hidden_size
        if config.norms in ("post", "both"):
            found["attention_out_norm"] = names.attention_out_norm, config.hidden_size
            found["mlp_out_norm"] = names.mlp_out_norm, config.hidden_size
        if config.qk_norm != "none":
            whole = config.qk_norm == "all"
            found["query_norm"] = names.query_norm, config.head_dim * (config.num_heads if whole else 1)
            found["key_norm"] = names.key_norm, config.head_dim * (config.num_kv_heads if whole else 1)
        if config.latent is not None:
            found["key_norm"] = names.latent_norm, config.latent.rank
            if config.latent.query_rank is not None:
                found["query_norm"] = names.query_down_norm, config.latent.query_rank
        prefix = self._prefix(layer)
        return {role: (f"{prefix}{name}.weight", size) for role, (name, size) in found.items()}

    def qkv(self, layer: int) -> Matrix:
        config, names = self._config, self._family.names
        if config.latent is not None:
            rank, key = config.latent.query_rank, config.latent.key_dim
            query = config.num_heads * config.latent.query_dim if rank is None else rank
            modules = (names.qkv[0] if rank is None else names.query_down, names.latent_down)
            return self._matrix(layer, modules, (query, key), config.hidden_size, config.qkv_bias)
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return self._matrix(layer, names.qkv, (query, key, key), config.hidden_size, config.qkv_bias)

    def query_up(self, layer: int) -> Matrix | None:
        """Return the second matrix of queries, where multi-head latent attention makes them in two steps."""
        latent = self._config.latent
        if latent is None or latent.query_rank is None:
            return None
        num_out = self._config.num_heads * latent.query_dim
        return self._matrix(layer, (self._family.names.query_up,), (num_out,), latent.query_rank)

    def latent_up(self, layer: int) -> Matrix | None:
        """[heads * (plain_dim + value_dim), rank]: keys, then values, of each head."""
        latent = self._config.latent
        if latent is None:
            return None
        num_out = self._config.num_heads * (latent.plain_dim + latent.value_dim)
        return self._matrix(layer, (self._family.names.latent_up,), (num_out,), latent.rank)

    def output(self, layer: int) -> Matrix:
        config = self._config
        num_in = config.num_heads * config.attended_dim
        names = self._family.names.output
        return self._matrix(layer, (names,), (config.hidden_size,), num_in, config.output_bias)

    def mlp(self, layer: int) -> tuple[Matrix, Matrix]:
        """(gate_up, down) of a dense layer."""
        config, names = self._config, self._family.names
        inner, bias = config.intermediate_size, config.mlp_bias
        gate_up = self._matrix(layer, names.gate_up, (inner, inner), config.hidden_size, bias)
        return gate_up, self._matrix(layer, (names.down,), (config.hidden_size,), inner, bias)

    def experts(self, layer: int) -> list[tuple[Matrix, Matrix]]:
        """(gate_up, down) of every expert of a sparse layer."""
        config, names, moe = self._config, self._family.names, self._config.layers[layer].moe
        assert moe is not None
        inner, bias = (moe.intermediate_size, moe.intermediate_size), moe.expert_bias
        pairs = []
        for expert in range(moe.num_experts):
            modules = tuple(f"{names.experts}.{expert}.{name}" for name in names.expert_gate_up)
            down = f"{names.experts}.{expert}.{names.expert_down}"
            pairs.append(
                (
                    self._matrix(layer, modules, inner, config.hidden_size, bias),
                    self._matrix(layer, (down,), (config.hidden_size,), moe.intermediate_size, bias),
                )
            )
        return pairs

    def stacked_experts(self, layer: int) -> StackedExperts | None:
        """Return where the layer's experts are, if they are in two tensors: the names that transformers 5 has
        for every family."""
        prefix = f"{self._prefix(layer)}mlp.experts."
        interleaved = self._family.names.interleaved_experts
        stacked = StackedExperts(prefix + "gate_up_proj", prefix + "down_proj", interleaved)
        found = stacked.gate_up in self._stored or self.packed_experts(stacked.gate_up) is not None
        return stacked if found else None

    def packed_experts(self, name: str) -> Mxfp4Format | None:
        """The format in which the experts' stacked matrix `name` is stored; None where it is a plain
        tensor."""
        packed = self.packed if isinstance(self.packed, Mxfp4Format) else None
        return packed if packed is not None and f"{name}_blocks" in self._stored else None

    def shared_expert(self, layer: int) -> tuple[Matrix, Matrix] | None:
        """(gate_up, down) of the MLP beside a sparse layer's experts; None where there is none."""
        config, names, moe = self._config, self._family.names, self._config.layers[layer].moe
        if moe is None or not moe.shared_intermediate_size:
            return None
        inner = moe.shared_intermediate_size
        modules = tuple(f"{names.shared_expert}.{name}" for name in names.expert_gate_up)
        down = f"{names.shared_expert}.{names.expert_down}"
        return (
            self._matrix(layer, modules, (inner, inner), config.hidden_size),
            self._matrix(layer, (down,), (config.hidden_size,), inner),
        )

    def shared_gate(self, layer: int) -> str:
        return f"{self._prefix(layer)}{self._family.names.shared_gate}.weight"

    def choice_bias(self, layer: int) -> str:
        return self._prefix(layer) + self._family.names.choice_bias

    def router(self, layer: int) -> str:
        stacked = self.stacked_experts(layer)
        plain = stacked is not None and not stacked.interleaved
        return f"{self._prefix(layer)}{'mlp.gate' if plain else self._family.names.router}.weight"

    def router_bias(self, layer: int) -> str:
        return f"{self._prefix(layer)}{self._family.names.router}.bias"

    def sinks(self, layer: int) -> str:
        """[heads]"""
        return self._prefix(layer) + self._family.names.sinks

    # --- all tensors ---

    def expected(self) -> dict[str, TensorSpec]:
        """Name and form of every tensor that the checkpoint must hold."""
        config = self._config
        specs = {
            self.embedding: _floats(config.vocab_size, config.hidden_size),
            self.final_norm: _floats(config.hidden_size),
        }
        if not config.tie_word_embeddings:
            specs.update(self._of_matrix(self.head))
        for layer in range(config.num_layers):
            specs.update({name: _floats(size) for name, size in self.norms(layer).values()})
            attention = (self.qkv(layer), self.output(layer), self.query_up(layer), self.latent_up(layer))
            specs.update(self._of_matrices(matrix for matrix in attention if matrix is not None))
            if config.attention_sinks:
                specs[self.sinks(layer)] = _floats(config.num_heads)
            specs.update(self._of_mlp(layer))
        return specs

    def may_ignore(self, name: str) -> bool:
        """Old exports carry rope buffers; tied models may carry the head that is the embedding again."""
        return (
            name.endswith("rotary_emb.inv_freq")
            or (self.packed is not None and self.packed.may_ignore(name))
            or (name == self._family.head + ".weight" and self._config.tie_word_embeddings)
            or name.startswith(self._family.ignored)
            or (self._family.extra_layers and self._is_extra(name))
        )

    def _is_extra(self, name: str) -> bool:
        """Return whether `name` is in a layer after the last one."""
        layers = f"{self._family.prefix}layers."
        number = name.removeprefix(layers).partition(".")[0]
        return name.startswith(layers) and number.isdecimal() and int(number) >= self._config.num_layers

    def _of_mlp(self, layer: int) -> dict[str, TensorSpec]:
        moe = self._config.layers[layer].moe
        if moe is None:
            return self._of_matrices(self.mlp(layer))
        specs = self._of_routing(layer, moe)
        specs.update(self._of_matrices(self.shared_expert(layer) or ()))
        stacked = self.stacked_experts(layer)
        if stacked is not None:
            return specs | self._of_stacked_experts(stacked, moe)
        for pair in self.experts(layer):
            specs.update(self._of_matrices(pair))
        return specs

    def _of_routing(self, layer: int, moe: MoeConfig) -> dict[str, TensorSpec]:
        specs = {self.router(layer): _floats(moe.num_experts, self._config.hidden_size)}
        if moe.router_bias:
            specs[self.router_bias(layer)] = _floats(moe.num_experts)
        if moe.choice_bias:
            specs[self.choice_bias(layer)] = _floats(moe.num_experts)
        if moe.shared_gate:
            specs[self.shared_gate(layer)] = _floats(1, self._config.hidden_size)
        return specs

    def _of_stacked_experts(self, stacked: StackedExperts, moe: MoeConfig) -> dict[str, TensorSpec]:
        inner, hidden = moe.intermediate_size, self._config.hidden_size
        specs: dict[str, TensorSpec] = {}
        for name, num_out, num_in in ((stacked.gate_up, 2 * inner, hidden), (stacked.down, hidden, inner)):
            specs.update(self._of_stacked(name, (moe.num_experts, num_out, num_in), stacked.interleaved))
            if moe.expert_bias:
                specs[stacked.bias(name)] = _floats(moe.num_experts, num_out)
        return specs

    def _of_stacked(self, name: str, shape: tuple[int, int, int], transposed: bool) -> dict[str, TensorSpec]:
        """`shape`: (experts, out, in)."""
        packed = self.packed_experts(name)
        if packed is not None:
            return packed.parameter_tensors(name, shape)
        experts, num_out, num_in = shape
        return {name: _floats(experts, num_in, num_out) if transposed else _floats(*shape)}

    def _of_matrices(self, matrices: Iterable[Matrix]) -> dict[str, TensorSpec]:
        return {name: spec for matrix in matrices for name, spec in self._of_matrix(matrix)}

    def _of_matrix(self, matrix: Matrix) -> Iterator[tuple[str, TensorSpec]]:
        for module, num_out in zip(matrix.modules, matrix.num_out, strict=True):
            if self.packed is not None and self.packed.holds(module, self._stored):
                yield from self.packed.tensors(module, (num_out, matrix.num_in), self._stored).items()
            else:
                yield f"{module}.weight", _floats(num_out, matrix.num_in)
            if matrix.has_bias:
                yield f"{module}.bias", _floats(num_out)

    def _matrix(
        self,
        layer: int,
        names: tuple[str, ...],
        num_out: tuple[int, ...],
        num_in: int,
        has_bias: bool = False,
    ) -> Matrix:
        """`num_out` are the parts' sizes; a checkpoint may hold them as one module."""
        modules = tuple(self._prefix(layer) + name for name in names)
        return Matrix(modules, num_out if len(modules) > 1 else (sum(num_out),), num_in, has_bias)

    def _prefix(self, layer: int) -> str:
        return f"{self._family.prefix}layers.{layer}."


def _floats(*shape: int) -> TensorSpec:
    return TensorSpec(shape, READABLE_DTYPES)
