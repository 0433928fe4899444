"""Configuration that every service with an engine has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.config.fields import PathRule, ServiceConfig, field_of
from shared.engine.affinity import parse_cpus
from shared.engine.engine_config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServiceConfig(ServiceConfig):
    """Settings of an engine: what it computes in and how much it may hold."""

    max_model_len: int = field_of(
        0, help="longest sequence in tokens; 0 = the model's limit, or what the pool holds", minimum=0
    )
    dtype: str = field_of(
        "auto", help="arithmetic; auto = the checkpoint's", choices=("auto", "float32", "bfloat16")
    )
    threads: int = field_of(
        0,
        help="threads of one forward pass; 0 = all cores that nobody else here computes on",
        minimum=0,
        maximum=1024,
    )
    cores_dir: str = field_of(
        "/dev/shm",  # noqa: S108  # the memory that processes of a host share, by that name
        help="where workers of one host agree about its cores; the same folder, shared, for all of them",
        path=PathRule.ALWAYS,
    )
    kv_memory_mb: int = field_of(256, help="memory of the KV pool, in MiB", minimum=1, maximum=1 << 24)
    kv_blocks: int = field_of(
        0, help="size of the KV pool in blocks of 16 tokens; 0 = what kv_memory_mb holds", minimum=0
    )
    kv_idle_s: float = field_of(
        600.0,
        help="seconds after which a cached prefix that nobody uses gives its memory back; 0 = never",
        minimum=0.0,
    )
    max_batch_tokens: int = field_of(
        512, help="rows of one step, which is also the prefill chunk", minimum=1, maximum=1 << 20
    )
    max_sequences: int = field_of(64, help="sequences held at once", minimum=1, maximum=1 << 16)
    max_step_ms: float = field_of(
        0.0, help="longest step that prompts may make of one with decode rows; 0 = any", minimum=0.0
    )
    device: str = field_of("cpu", help="where the model is computed", choices=("cpu", "cuda"))
    backend: str = field_of(
        "auto", help="arithmetic of the CPU; auto = native if built", choices=("auto", "native", "torch")
    )
    quantization: str = field_of(
        "none",
        help="of the weights, at load; none = as they are stored, dense = unpacked, fp8 on cuda",
        choices=("none", "dense", "int8", "int4", "fp8"),
    )
    quant_group: int = field_of(
        0, help="weights that share a scale; 0 = 128 for int8, 64 for int4", minimum=0, maximum=1 << 16
    )
    kv_dtype: str = field_of(
        "auto", help="of stored KV; auto = the one computed in", choices=("auto", "int8", "fp8")
    )
    deterministic: bool = field_of(False, help="logits do not depend on what else is in the batch")
    tensor_parallel: int = field_of(1, help="processes that share the model", minimum=1, maximum=64)
    offload_memory_mb: int = field_of(
        0, help="host memory for KV of preempted sequences, in MiB", minimum=0, maximum=1 << 24
    )
    offload_dir: str = field_of(
        "", help="directory for such KV when host memory is full", path=PathRule.ALWAYS
    )
    offload_disk_mb: int = field_of(0, help="how much may go there, in MiB", minimum=0, maximum=1 << 24)
    weight_cache_mb: int = field_of(
        32768,
        help="disk for packed weights that processes of this host share, in MiB; 0 = each packs its own",
        minimum=0,
        maximum=1 << 24,
    )
    weight_cache_dir: str = field_of(
        "",
        help="directory for them, on disk or tmpfs; empty = penstock/weights in the user's cache directory",
    )
    adapter_file: str = field_of(
        "",
        help="file that says which adapters there are over the model; empty = none",
        path=PathRule.ALWAYS,
    )
    max_adapters: int = field_of(8, help="adapters loaded at once; 0 = none", minimum=0, maximum=256)
    max_adapter_rank: int = field_of(
        64, help="largest rank of an adapter's products", minimum=1, maximum=1 << 12
    )
    cpus: str = field_of("", help="CPUs that the engine's threads stay on, like 0,2-3; empty = any")

    def engine_config(self, model_dir: Path) -> EngineConfig:
        """Return the engine's configuration, not validated yet. Raises InvalidRequest for a wrong list of
        CPUs."""
        return EngineConfig(
            model_dir=str(model_dir),
            max_model_len=self.max_model_len,
            dtype=self.dtype,
            kv_blocks=self.kv_blocks or 1,
            kv_memory_mb=0 if self.kv_blocks else self.kv_memory_mb,
            kv_idle_s=self.kv_idle_s,
            max_batch_tokens=self.max_batch_tokens,
            max_sequences=self.max_sequences,
            threads=self.threads,
            max_step_ms=self.max_step_ms,
            device=self.device,
            backend=self.backend,
            quantization=self.quantization,
            quant_group=self.quant_group,
            kv_dtype=self.kv_dtype,
            deterministic=self.deterministic,
            tensor_parallel=self.tensor_parallel,
            offload_memory_mb=self.offload_memory_mb,
            offload_dir=self.offload_dir,
            offload_disk_mb=self.offload_disk_mb,
            weight_cache_mb=self.weight_cache_mb,
            weight_cache_dir=self.weight_cache_dir,
            cpus=parse_cpus(self.cpus),
            max_adapters=self.max_adapters and self.max_adapters + 1,  # one more while it replaces another
            max_adapter_rank=self.max_adapter_rank,
        )
