"""The answer as text for a terminal."""

from __future__ import annotations

import math

from services.cli.bench.report.latency_figures import SHARES
from services.cli.bench.report.load_words import number
from services.cli.capacity.capacity_answer import LEFT_OUT, CapacityAnswer
from services.cli.capacity.prediction import Prediction
from services.cli.capacity.profile import MAX_ROLE_INSTANCES, ROLES_SIZED
from services.cli.capacity.sizing import LossOutcome
from services.cli.view.table import table

STAGE_HEAD = ("role", "instances", "with spares", "utilization", "wait", "mean wait ms")
LATENCY_HEAD = ("ms", "mean", *SHARES)
CHANGE_HEAD = ("what if", "kept", "most/s", "busiest", "ttft p50", "ttft p99", "itl p99", "goodput/s")
MEASURED_HEAD = ("figure", "predicted", "measured", "error")


def capacity_words(answer: CapacityAnswer) -> str:
    """Return everything, most important first."""
    prediction = answer.prediction
    parts = [
        _load_line(answer),
        f"overloaded: {prediction.trouble}" if prediction.trouble else "",
        table(STAGE_HEAD, [_stage_row(answer, role) for role in ROLES_SIZED]),
        _size_line(answer),
        table(LATENCY_HEAD, _latency_rows(prediction)),
        _verdict_lines(prediction),
        _breaking_line(answer),
        "\n".join(_loss_line(loss) for loss in answer.losses),
        table(CHANGE_HEAD, _change_rows(answer)),
        _measured_table(answer),
        "\n".join(f"note: {note}" for note in answer.notes),
        "\n".join(("These figures are predictions. They leave out:", *(f"- {what}" for what in LEFT_OUT))),
    ]
    return "\n\n".join(part for part in parts if part)


def _load_line(answer: CapacityAnswer) -> str:
    workload = answer.question.workload
    regions = f", in each of {answer.regions} regions" if answer.regions > 1 else ""
    return (
        f"{answer.question.profile.name}: {workload.rate:.4g} requests/s of "
        f"{workload.input_tokens.mean():.0f} tokens in ({workload.cached_share:.0%} cached) and "
        f"{workload.mean_output_tokens:.0f} out, gaps' squared variation {workload.arrival_scv:.2g}{regions}"
    )


def _stage_row(answer: CapacityAnswer, role: str) -> tuple[str, ...]:
    stage = answer.prediction.stages.get(role)
    spares = str(answer.spares.of(role) * answer.regions) if answer.spares else "-"
    counts = (str(answer.counts.of(role) * answer.regions), spares)
    if stage is None:
        return (role, *counts, "-", "-", "-")
    wait = (f"{stage.wait.share:.1%}", number(stage.wait.mean_s * 1e3))
    return (role, *counts, f"{stage.utilization:.0%}", *wait)


def _size_line(answer: CapacityAnswer) -> str:
    profile, regions = answer.question.profile, answer.regions
    said = [f"{answer.counts.cores(profile) * regions:g} cores"]
    if gpus := answer.counts.gpus(profile) * regions:
        said.append(f"{gpus} GPUs")
    said.append(f"{answer.hosts * regions} hosts of {profile.host.cores} cores")
    if answer.cost is not None:
        said.append(f"{answer.cost:.4g} {answer.currency} an hour".replace("  ", " "))
    prediction = answer.prediction
    batch = f"batches of {prediction.mean_batch:.3g} in the mean, of {prediction.slots} slots"
    stretch = f"; work takes {prediction.stretch:.2f} times as long for want of cores"
    return f"{', '.join(said)}; {batch}{stretch if prediction.stretch > 1 else ''}"


def _latency_rows(prediction: Prediction) -> list[tuple[str, ...]]:
    return [
        (name, number(figures.mean), *(number(figures.quantiles[share].value) for share in SHARES))
        for name, figures in prediction.latencies.items()
    ]


def _verdict_lines(prediction: Prediction) -> str:
    lines = [
        f"{'kept' if verdict.kept else 'missed':6}  {verdict.text}: {number(verdict.measured)}"
        for verdict in prediction.verdicts
    ]
    rates = prediction.rates
    goodput = f"goodput {number(rates['goodput'])}/s, {number(rates['output_tokens_per_s'])} output tokens/s"
    return "\n".join((goodput, *lines))


def _breaking_line(answer: CapacityAnswer) -> str:
    breaking = answer.breaking
    if not answer.prediction.kept and answer.found:
        why = answer.prediction.trouble or breaking.why
        return f"no counts of up to {MAX_ROLE_INSTANCES} a role were found that keep everything: {why}"
    busiest = f" (busiest: {breaking.role})" if breaking.role else ""
    return f"breaks first beyond {number(breaking.rate)} requests/s: {breaking.why}{busiest}"


def _loss_line(loss: LossOutcome) -> str:
    begin = f"one {loss.role} instance lost, {loss.left} left: "
    if loss.kept:
        return f"{begin}everything is kept"
    if loss.prediction is not None and not loss.prediction.trouble:
        return f"{begin}no line grows, but an objective is missed"
    if not loss.backlog:
        return f"{begin}nothing is served until a fresh one is ready"
    drained = f"{loss.drained_s:.1f} s" if math.isfinite(loss.drained_s) else "for good"
    return f"{begin}{loss.backlog:.0f} requests wait when a fresh one is ready, and last {drained}"


def _change_rows(answer: CapacityAnswer) -> list[tuple[str, ...]]:
    rows = []
    for row in answer.changes:
        prediction = row.prediction
        ttft, itl = prediction.latencies["ttft"].quantiles, prediction.latencies["itl"].quantiles
        role = prediction.most_loaded if prediction.stages else ""
        rows.append(
            (
                row.change,
                "yes" if prediction.kept else "no",
                number(row.most_rate),
                f"{role} {prediction.stages[role].utilization:.0%}" if role else "-",
                *(number(found.value) for found in (ttft["p50"], ttft["p99"], itl["p99"])),
                number(prediction.rates["goodput"]),
            )
        )
    return rows


def _measured_table(answer: CapacityAnswer) -> str:
    rows = [
        (
            row.figure,
            number(row.predicted),
            number(row.measured),
            f"{row.error:+.0%}" if math.isfinite(row.error) else "-",
        )
        for row in answer.compared
    ]
    return table(MEASURED_HEAD, rows) if rows else ""
