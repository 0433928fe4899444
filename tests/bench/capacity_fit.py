"""Make a profile play its own fit: its speeds are those with which the loads that were watched come out.

What was watched has waits in it: a step waited for the loop's work on the last one, a prompt for the bus. A
played machine has these waits as well, so that speeds that were measured with them would have them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from services.cli.capacity.pipeline.pipeline import Pipeline
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts
from services.cli.capacity.profile_file import checked_profile

ROUNDS = 6
PLAYED_S = 20.0


def settled_tables(
    tables: dict[str, Any], fit: dict[str, Any], prompt_tokens: float, short_tokens: float
) -> dict[str, Any]:
    """Return the tables with speeds of prompts and of steps with which the watched loads take as long."""
    (prompts,) = fit["prompts"]["loads"]
    answers = fit["answers"]["loads"]
    long_ms, short_ms = prompts["phases"]["prefill.compute"], answers[0]["phases"]["prefill.compute"]
    steps_ms = {_clients(load): load["phases"]["decode"] / (_behind(load) or 1) for load in answers}
    wanted = {"long": long_ms, "short": short_ms, **{f"step {n}": ms for n, ms in steps_ms.items()}}
    given = dict(wanted)
    for _ in range(ROUNDS):
        tables = _with_speeds(tables, given, prompt_tokens, short_tokens)
        profile = checked_profile("the fit", tables)
        played = {"long": _played(profile, 1, prompt_tokens, 1)[0]}
        for load in answers:
            prompt_ms, step_ms = _played(profile, _clients(load), short_tokens, 1 + _behind(load))
            played[f"step {_clients(load)}"] = step_ms
            played.setdefault("short", prompt_ms)
        given = {name: ms * wanted[name] / played[name] for name, ms in given.items()}
    return _with_speeds(tables, given, prompt_tokens, short_tokens)


def _with_speeds(
    tables: dict[str, Any], given: dict[str, float], prompt_tokens: float, short_tokens: float
) -> dict[str, Any]:
    token_ms = (given["long"] - given["short"]) / (prompt_tokens - short_tokens)
    points, longest = [], 0.0
    for name, ms in given.items():
        if name.startswith("step"):
            longest = max(longest, ms)
            points.append([int(name.split()[1]), longest])
    overhead_ms = max(0.0, given["short"] - short_tokens * token_ms)
    prefill = {**tables["prefill"], "tokens_per_s": 1e3 / token_ms, "overhead_ms": overhead_ms}
    return {**tables, "prefill": prefill, "decode": {**tables["decode"], "step_ms": points}}


def _played(profile: DeploymentProfile, clients: int, prompt: float, answer: int) -> tuple[float, float]:
    """Return medians in ms of the time of a prompt and of a step, of so many clients on one machine."""
    done: list[PlayedRequest] = []

    def ended(request: PlayedRequest) -> None:
        done.append(request)
        if request.end_s < PLAYED_S:
            pipeline.expect(PlayedRequest(request.end_s + request.way_s, prompt, prompt, answer))

    pipeline = Pipeline(profile, InstanceCounts(), 1, ended=ended)
    pipeline.play([PlayedRequest(0.01 * number, prompt, prompt, answer) for number in range(clients)])
    return _medians_ms(done, profile.decode.transfer_ms)


def _medians_ms(done: Sequence[PlayedRequest], transfer_ms: float) -> tuple[float, float]:
    prompts = [request.first_s - request.since_s - request.line_wait_s for request in done]
    behind = done[0].tokens_behind_first
    steps = [(request.end_s - request.first_s - transfer_ms / 1e3) / (behind or 1) for request in done]
    return 1e3 * median(prompts), 1e3 * median(steps)


def _clients(load: dict[str, Any]) -> int:
    options: list[str] = load["options"]
    return int(options[options.index("--concurrency") + 1])


def _behind(load: dict[str, Any]) -> int:
    options: list[str] = load["options"]
    return int(options[options.index("--output-tokens") + 1]) - 1
