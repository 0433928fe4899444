"""A speculator's tick with sequences kept from tick to tick, against admitting each session anew.

    python -m tests.bench.bench_draft_ticks [--sessions N] [--context-tokens N] [--ticks N] [--json]

In process, on a random Llama of three thin layers, so that what a tick costs beside the model shows. Between
two ticks each session has two more tokens, of which the draft had guessed the first; both ways go in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from services.speculator.drafting import Drafter, Wish
from shared.engine import BLOCK_TOKENS, Engine, EngineConfig, SamplingParams, StepResult
from tests.support.engine import save_random_model
from tests.support.readmitting_draft import readmitting_draft

COUNT = 4
"""Tokens wanted of each draft."""
VOCAB_SIZE = 97


class Sessions:
    """What is final of each; all begin alike but for their last tokens, so that this is soon computed."""

    def __init__(self, options: argparse.Namespace) -> None:
        begin = [3 + 7 * index % 90 for index in range(options.context_tokens - BLOCK_TOKENS)]
        self.tokens = {
            f"s{number}": begin + [3 + (index * number) % 90 for index in range(BLOCK_TOKENS)]
            for number in range(options.sessions)
        }
        self._told = dict.fromkeys(self.tokens, 0)
        self._params = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True)
        self._prompt_len = options.context_tokens

    def wishes(self, *, whole: bool) -> list[Wish]:
        """One of each session: of all its tokens, or of those that are new."""
        made = []
        for key, tokens in self.tokens.items():
            base = 0 if whole else self._told[key]
            made.append(Wish(key, base, tuple(tokens[base:]), self._prompt_len, self._params, COUNT))
            self._told[key] = len(tokens)
        return made

    def decode(self, guesses: dict[str, tuple[int, ...]]) -> None:
        """What a decode worker would commit after a draft: one right guess, and another token."""
        for key, ids in guesses.items():
            self.tokens[key] += [ids[0], (ids[1] + 1) % VOCAB_SIZE]


class ModelTime:
    """What an engine's forward passes have taken since it was last asked."""

    def __init__(self, engine: Engine) -> None:
        self._us = 0
        self._step = engine.step
        engine.step = self._noted  # type: ignore[method-assign]

    def _noted(self) -> StepResult:
        result = self._step()
        self._us += result.model_us
        return result

    def take_ms(self) -> float:
        taken_us, self._us = self._us, 0
        return taken_us / 1e3


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    blocks = options.sessions * (options.context_tokens // BLOCK_TOKENS + options.ticks)

    def make_engine() -> Engine:
        return Engine(EngineConfig(str(folder), kv_blocks=blocks, max_sequences=options.sessions))

    engines = {"kept": make_engine(), "admitted anew": make_engine()}
    sessions = {name: Sessions(options) for name in engines}
    models = {name: ModelTime(engine) for name, engine in engines.items()}
    drafter = Drafter()
    times: dict[str, list[float]] = {name: [] for name in engines}
    beside: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(options.ticks):
        guesses = {}
        for name, engine in engines.items():
            began_s = time.perf_counter()
            if name == "kept":
                guesses[name] = drafter.draft(engine, sessions[name].wishes(whole=False)).token_ids
            else:
                guesses[name] = readmitting_draft(engine, sessions[name].wishes(whole=True))
            times[name].append(1e3 * (time.perf_counter() - began_s))
            beside[name].append(times[name][-1] - models[name].take_ms())
        assert guesses["kept"] == guesses["admitted anew"]
        for name, made in sessions.items():
            made.decode(guesses[name])
    return {
        f"{name}{which}": statistics.median(each[name][2:])
        for name in engines
        for which, each in (("", times), (", beside the model", beside))
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--context-tokens", type=int, default=8192)
    parser.add_argument("--ticks", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save_random_model(Path(folder), max_position_embeddings=2 * options.context_tokens)
        found = measure(options, model)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, ms in found.items():
        print(f"{name:>32}: {ms:8.2f} ms per tick")


if __name__ == "__main__":
    main()
