"""Check whether there is memory for a stack, before anything of it is started.

Too little shows late and in many ways: services are killed by the kernel, or stand still while it reads their
programs again and again. What is counted here is less than what they take, so that nothing is refused that
would run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.launcher.model_check import CheckedModel
from services.launcher.options import StackOptions
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.config.settings import Settings
from shared.engine.draft_head.config import WEIGHTS_FILE
from shared.engine.draft_head.shipped import SHIPPED, head_directory
from shared.engine.loading.weight_files import weight_files
from shared.errors import Unavailable
from shared.process.memory_room import MemoryRoom, memory_room
from shared.roles import ENGINE_ROLES, ROLES

MB = 1_000_000
MIB = 1 << 20
SHARED_MB = 235
"""The launcher, nats-server, what services have imported together, and the files that run: with 7 % less the
kernel begins to end those that start."""
SERVICE_MB = {
    "gateway": 16,
    "tokenizer": 15,
    "retriever": 40,
    "prefill": 22,
    "decode": 22,
    "speculator": 21,
    "detokenizer": 15,
}
"""The least that an instance has for itself when it is ready, measured with 5 to 20 % more; without weights,
KV and documents."""
QUANTIZED_SHARE = {"int8": 0.5, "fp8": 0.5, "int4": 0.25}
"""The least part of a checkpoint's bytes that its weights take when they are quantized at load."""
VALUE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1}
LEAST_POOL_MB = 16
"""A pool that would have to be smaller than this is not worth naming: the stack is too large."""


class TooLittleMemory(Unavailable):
    """There is not enough memory for the stack to start."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that a stack takes at least: its processes and weights at once, the KV pools as they fill.

    `pools` are (role, instances, bytes of each).
    """

    services_bytes: int
    weights_bytes: int
    pools: tuple[tuple[str, int, int], ...]

    @property
    def start_bytes(self) -> int:
        return self.services_bytes + self.weights_bytes

    @property
    def full_bytes(self) -> int:
        return self.start_bytes + sum(instances * size for _, instances, size in self.pools)


def check_memory(
    options: StackOptions,
    target: CheckedModel,
    draft: CheckedModel | None,
    tell: Callable[[str], None],
    *,
    room: Callable[[], MemoryRoom | None] = memory_room,
) -> None:
    """Raises TooLittleMemory where the stack cannot even start; that its pools cannot be filled goes to
    `tell`."""
    found = room()
    if found is None:
        return
    need = memory_need(options, target, draft)
    if need.start_bytes > found.available_bytes:
        raise TooLittleMemory(
            f"the stack needs {_mb(need.start_bytes)} of memory to start ({_mb(need.services_bytes)} for its "
            f"processes, {_mb(need.weights_bytes)} for weights), and {_mb(found.available_bytes)} are there "
            f"{found.where}: {_advice(options, need)}"
        )
    if need.full_bytes > found.available_bytes:
        tell(_told_of_pools(need, found))


def memory_need(options: StackOptions, target: CheckedModel, draft: CheckedModel | None) -> MemoryNeed:
    services = SHARED_MB + sum(options.counts[role] * SERVICE_MB[role] for role in ROLES)
    pools = tuple(_pools(options, target, draft))
    return MemoryNeed(services * MB, _weights_bytes(options, target, draft), pools)


def _pools(
    options: StackOptions, target: CheckedModel, draft: CheckedModel | None
) -> Iterator[tuple[str, int, int]]:
    for role in ENGINE_ROLES:
        settings, model = options.settings[role], draft if role == "speculator" else target
        if model is None or not options.counts[role] or settings["device"].value != "cpu":
            continue
        blocks = settings["kv_blocks"].value
        size = blocks * _block_bytes(model, settings) if blocks else settings["kv_memory_mb"].value * MIB
        yield role, options.counts[role], size


def _block_bytes(model: CheckedModel, settings: Settings) -> int:
    config, stored = model.config, settings["kv_dtype"].value
    values = 1 if config.latent else 2
    value_bytes = VALUE_BYTES[config.dtype if stored == "auto" else stored]
    return (
        HASH_BLOCK_TOKENS * len(config.layers) * config.num_kv_heads * config.head_dim * values * value_bytes
    )


def _weights_bytes(options: StackOptions, target: CheckedModel, draft: CheckedModel | None) -> int:
    """Count the weights once where the processes of this host map one file of them, else for each process."""
    needed = 0
    for model, roles in ((target, ("prefill", "decode")), (draft, ("speculator",))):
        each = [
            (options.counts[role], _loaded_bytes(model, options.settings[role]), options.settings[role])
            for role in roles
            if model is not None and options.counts[role]
        ]
        alone = sum(count * size for count, size, settings in each if not _shares_weights(settings))
        shared = max((size for _, size, settings in each if _shares_weights(settings)), default=0)
        needed += alone + shared
    return needed + options.counts["decode"] * _head_bytes(options.settings["decode"], target)


def _head_bytes(decode: Settings, target: CheckedModel) -> int:
    """Count a draft head's weights, which are kept in 8 bits each: of 16 in the file of the one that ships,
    of up to 32 in another's."""
    named = decode["draft_head"].value
    folder = head_directory(
        named, target.path, device=decode["device"].value, tensor_parallel=decode["tensor_parallel"].value
    )
    path = Path(folder) / WEIGHTS_FILE
    stored = path.stat().st_size if folder and path.is_file() else 0
    return stored // 2 if named == SHIPPED else stored // 4


def _shares_weights(settings: Settings) -> bool:
    return bool(settings["backend"].value != "torch" and settings["weight_cache_mb"].value > 0)


def _loaded_bytes(model: CheckedModel, settings: Settings) -> int:
    if settings["device"].value != "cpu":
        return 0
    stored = sum(file.stat().st_size for file in weight_files(model.path))
    return int(stored * QUANTIZED_SHARE.get(settings["quantization"].value, 1.0))


def _advice(options: StackOptions, need: MemoryNeed) -> str:
    """Say what to lower, the largest first."""
    if need.weights_bytes > need.services_bytes:
        return 'give it more, take a smaller model, or set quantization = "int8" or "int4" under [model]'
    several = [role for role in ROLES if options.counts[role] > 1]
    if several:
        fewer = ", ".join(f"--{role} {options.counts[role] - 1}" for role in several)
        return f"give it more, or start less, as with {fewer}"
    if options.counts["retriever"]:
        return f"give it more, or start less: --retriever 0 saves {SERVICE_MB['retriever']} MB"
    return "give it more"


def _told_of_pools(need: MemoryNeed, found: MemoryRoom) -> str:
    """Say what the pools come to when they are full, and how large they may be."""
    instances = sum(count for _, count, _ in need.pools)
    fitting = (found.available_bytes - need.start_bytes) // instances // MIB
    roles = " and ".join(f"[{role}]" for role, _, _ in need.pools)
    lower = f"lower kv_memory_mb to {fitting} under {roles}" if fitting >= LEAST_POOL_MB else "start less"
    return (
        f"services may be killed when their KV pools are full: the stack needs {_mb(need.full_bytes)} of "
        f"memory then, and {_mb(found.available_bytes)} are there {found.where}; give it more, or {lower}"
    )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / MB:.0f} MB"
