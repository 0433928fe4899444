"""The speed of a deployment's parts, as measured: what each instance does, has and costs in cores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.cli.capacity.step_curve import StepCurve

MAX_ROLE_INSTANCES = 1024
"""The most instances of one role that are considered."""
ROLES_SIZED = ("gateway", "prefill", "decode")
"""The roles that are counted. A gateway stands for its tokenizer and its detokenizer, too."""


@dataclass(frozen=True, slots=True)
class HostSize:
    """The cores and GPUs of one machine. `request_cpu_ms` and `token_cpu_ms` is what a request and a token of
    its answer cost there beside what instances compute: the bus, loops of workers, a client;
    `kv_token_cpu_ms` the way of the KV of each token of a prompt to decode."""

    cores: int
    gpus: int = 0
    request_cpu_ms: float = 0.0
    token_cpu_ms: float = 0.0
    kv_token_cpu_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FrontProfile:
    """A gateway with its tokenizer and detokenizer. `cpu_ms` of a request, `token_cpu_ms` of each token of
    its answer; `overhead_ms` is the way over the bus, for which nobody waits in a line."""

    cpu_ms: float
    token_cpu_ms: float = 0.0
    overhead_ms: float = 0.0
    cores: float = 1.0


@dataclass(frozen=True, slots=True)
class PrefillProfile:
    tokens_per_s: float
    overhead_ms: float = 0.0
    cores: float = 1.0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class DecodeProfile:
    """`transfer_ms`: KV makes a request wait so long between its first token and its second."""

    step_ms: StepCurve
    slots: int
    kv_blocks: int
    block_tokens: int = 16
    transfer_ms: float = 0.0
    cores: float = 1.0
    gpus: int = 0

    def slots_for(self, sequence_tokens: float) -> int:
        """Return how many sequences of so many tokens a worker has room for; 0 where one is too long."""
        blocks = max(1, -(-int(sequence_tokens) // self.block_tokens))
        return min(self.slots, self.kv_blocks // blocks)


@dataclass(frozen=True, slots=True)
class QuantizedSpeed:
    """The speed of the same model with int8 weights."""

    tokens_per_s: float
    step_ms: StepCurve


@dataclass(frozen=True, slots=True)
class RestartProfile:
    """`detect_s` until a dead instance is missed, `ready_s` until a fresh one takes work."""

    ready_s: float = 0.0
    detect_s: float = 0.75


@dataclass(frozen=True, slots=True)
class DeploymentProfile:
    name: str
    host: HostSize
    gateway: FrontProfile
    prefill: PrefillProfile
    decode: DecodeProfile
    restart: RestartProfile = RestartProfile()
    int8: QuantizedSpeed | None = None

    def quantized(self) -> DeploymentProfile:
        """Return the same deployment with int8 weights, which the profile has to have."""
        assert self.int8 is not None
        return replace(
            self,
            prefill=replace(self.prefill, tokens_per_s=self.int8.tokens_per_s),
            decode=replace(self.decode, step_ms=self.int8.step_ms),
            int8=None,
        )


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    gateway: int = 1
    prefill: int = 1
    decode: int = 1

    def with_one(self, role: str, change: int) -> InstanceCounts:
        """Return these with so many more of one role."""
        return replace(self, **{role: self.of(role) + change})

    def of(self, role: str) -> int:
        count: int = getattr(self, role)
        return count

    def cores(self, profile: DeploymentProfile) -> float:
        workers = self.prefill * profile.prefill.cores + self.decode * profile.decode.cores
        return self.gateway * profile.gateway.cores + workers

    def gpus(self, profile: DeploymentProfile) -> int:
        return self.prefill * profile.prefill.gpus + self.decode * profile.decode.gpus
