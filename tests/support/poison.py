"""KV that nobody holds is made unusable: whatever is read of it makes logits no numbers."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine import Engine, TokenOutput


def poison_what_is_free(engine: Engine) -> None:
    held = {block for sequence in engine._scheduler.sequences.values() for block in sequence.all_blocks}
    free = [block for block in range(engine.blocks.num_blocks) if block not in held]
    engine.kv_pool.data[:, free] = 0xFF


def run_poisoned(engine: Engine, keys: Sequence[str]) -> dict[str, list[TokenOutput]]:
    """What each draws; after each step all that nobody holds is made unusable."""
    outputs: dict[str, list[TokenOutput]] = {key: [] for key in keys}
    while engine.has_work:
        for output in engine.step().outputs:
            outputs[output.key].append(output)
        engine.check()
        poison_what_is_free(engine)
    return outputs
