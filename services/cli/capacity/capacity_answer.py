"""The whole answer to a question of capacity, before it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.cli.bench.report.latency_figures import known
from services.cli.bench.report.prices import Prices
from services.cli.capacity.measured_comparison import FigureComparison, MeasuredFile
from services.cli.capacity.prediction import Prediction, predict_finite
from services.cli.capacity.profile import ROLES_SIZED, InstanceCounts
from services.cli.capacity.sizing import (
    BreakingPoint,
    CapacityQuestion,
    LossOutcome,
    breaking_point,
    cost_per_hour,
    fewest_instances,
    hosts_for,
    loss_outcomes,
    with_spares,
)
from services.cli.capacity.what_if import WhatIfRow, what_if_rows

LEFT_OUT = (
    "prompts that decode workers compute themselves, drafts, retrieval, adapters and guests",
    "limits and fairness of tenants, sheds, deadlines, clients that cancel",
    "the way of tokens behind the first from a decode worker to their client",
    "the bus and the network beyond overhead_ms and transfer_ms, caches that forget, prefixes fetched",
    "the order of a trace: its gaps and lengths are drawn anew",
    "other work on the same cores than that of host.request_cpu_ms and host.token_cpu_ms",
)
"""Things that a prediction knows nothing of."""


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """`found`: the counts are those that were found, else those that were asked for. `cost` is by the hour,
    of all regions; None without prices. `spares` None: nothing was found to add them to."""

    question: CapacityQuestion
    found: bool
    prediction: Prediction
    regions: int
    hosts: int
    cost: float | None
    currency: str
    breaking: BreakingPoint
    losses: list[LossOutcome]
    spares: InstanceCounts | None
    changes: list[WhatIfRow]
    compared: list[FigureComparison]
    notes: list[str]

    @property
    def counts(self) -> InstanceCounts:
        return self.prediction.counts

    def as_json(self) -> dict[str, Any]:
        """Return all of it; what is infinite or not known is null."""
        workload, regions = self.question.workload, self.regions
        cores = self.counts.cores(self.question.profile) * regions
        return {
            "profile": self.question.profile.name,
            "predicted": True,
            "left_out": list(LEFT_OUT),
            "load": {
                "requests_per_s": workload.rate,
                "arrival_scv": workload.arrival_scv,
                "input_tokens": float(workload.input_tokens.mean()),
                "output_tokens": workload.mean_output_tokens,
                "cached_share": workload.cached_share,
                "regions": regions,
            },
            "kept": self.prediction.kept,
            "fewest": self.found,
            "instances": _multiplied(self.counts, regions),
            "instances_with_spares": _multiplied(self.spares, regions) if self.spares else None,
            "hosts": self.hosts * regions,
            "cores": cores,
            "gpus": self.counts.gpus(self.question.profile) * regions,
            "cost_per_hour": self.cost,
            "currency": self.currency,
            "prediction": _prediction_json(self.prediction),
            "breaks_first": asdict(self.breaking),
            "losses": [_loss_json(loss) for loss in self.losses],
            "what_if": [
                {"change": row.change, "most_rate": row.most_rate, **_prediction_json(row.prediction)}
                for row in self.changes
            ],
            "measured": [
                {**asdict(row), "predicted": known(row.predicted), "error": known(row.error)}
                for row in self.compared
            ],
            "notes": self.notes,
        }


def answer_question(
    question: CapacityQuestion,
    counts: InstanceCounts | None,
    regions: int,
    prices: Prices | None,
    measured: MeasuredFile | None,
) -> CapacityAnswer:
    """Return everything that is said; `counts` None: the fewest are looked for."""
    fewest = fewest_instances(question)
    prediction = fewest if counts is None else question.predict(counts)
    hosts = question.hosts or hosts_for(question.profile, prediction.counts)
    return CapacityAnswer(
        question=question,
        found=counts is None,
        prediction=prediction,
        regions=regions,
        hosts=hosts,
        cost=cost_per_hour(prices, hosts, regions) if prices else None,
        currency=prices.currency if prices else "",
        breaking=breaking_point(question, prediction.counts),
        losses=loss_outcomes(question, prediction.counts),
        spares=with_spares(fewest) if fewest.kept else None,
        changes=what_if_rows(question, prediction.counts),
        compared=_compared(question, prediction, measured) if measured else [],
        notes=_notes(question, prediction, measured),
    )


def _compared(
    question: CapacityQuestion, prediction: Prediction, measured: MeasuredFile
) -> list[FigureComparison]:
    """Compare with a prediction of the very requests that were measured, where their times are known."""
    if measured.times_s:
        prediction = predict_finite(
            question.profile,
            question.workload,
            prediction.counts,
            measured.times_s,
            question.levels,
            question.hosts,
        )
    return measured.compare(prediction)


def _notes(question: CapacityQuestion, prediction: Prediction, measured: MeasuredFile | None) -> list[str]:
    found: Sequence[str] = (
        measured.notes(question.workload.rate, question.workload.cached_share) if measured else ()
    )
    curve = question.profile.decode.step_ms
    notes = list(found)
    if prediction.slots > curve.largest_batch:
        notes.append(
            f"steps of over {curve.largest_batch} sequences were not measured: their time is a guess up to "
            f"{prediction.slots} slots"
        )
    if question.hosts is not None:
        gpus = prediction.counts.gpus(question.profile)
        if gpus > question.hosts * question.profile.host.gpus:
            notes.append(f"{gpus} GPUs are wanted, and {question.hosts} hosts have fewer: pass more --hosts")
    return notes


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "kept": prediction.kept,
        "trouble": prediction.trouble,
        "stretch": prediction.stretch,
        "slots": prediction.slots,
        "mean_batch": prediction.mean_batch,
        "stages": {
            role: {
                "utilization": stage.utilization,
                "waiting_share": stage.wait.share,
                "mean_wait_ms": known(stage.wait.mean_s * 1e3),
            }
            for role, stage in prediction.stages.items()
        },
        "latencies_ms": {
            name: {
                "mean": known(figures.mean),
                **{share: known(found.value) for share, found in figures.quantiles.items()},
            }
            for name, figures in prediction.latencies.items()
        },
        "rates": prediction.rates,
        "service_levels": [
            {"text": verdict.text, "predicted": known(verdict.measured), "kept": verdict.kept}
            for verdict in prediction.verdicts
        ],
    }


def _multiplied(counts: InstanceCounts, regions: int) -> dict[str, int]:
    return {role: counts.of(role) * regions for role in ROLES_SIZED}


def _loss_json(loss: LossOutcome) -> dict[str, Any]:
    return {
        "role": loss.role,
        "left": loss.left,
        "kept": loss.kept,
        "backlog": loss.backlog,
        "drained_s": known(loss.drained_s),
    }
