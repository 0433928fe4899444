from __future__ import annotations

import math

from services.cli.bench.micro.cost_page import cost_table, costs_as_json
from services.cli.bench.micro.cost_rows import CostRow, MedianSpan, cost_rows_of, floor_ratios
from services.cli.bench.micro.turns import TurnCost
from services.cli.bench.report.machine import MachineState

FIGURES = {"ms": lambda turn: 1e3 * turn.wall_s, "CPU ms": lambda turn: 1e3 * turn.cpu_s}
COSTS = {
    "floor": [TurnCost(0.001, 0.002), TurnCost(0.004, 0.002), TurnCost(0.002, 0.002)],
    "ours": [TurnCost(0.003, 0.003), TurnCost(0.004, 0.004), TurnCost(0.010, 0.002)],
}
ROWS = cost_rows_of(COSTS, {"ours": ("floor",)}, FIGURES)
MACHINE = MachineState("a processor", 2, 0.5)


def test_each_figure_has_a_row_of_each_side() -> None:
    assert [(row.name, row.unit, row.floors) for row in ROWS] == [
        ("floor", "ms", ()),
        ("ours", "ms", ("floor",)),
        ("floor", "CPU ms", ()),
        ("ours", "CPU ms", ("floor",)),
    ]
    assert ROWS[1].readings == (3.0, 4.0, 10.0)
    assert ROWS[2].readings == (2.0, 2.0, 2.0)


def test_a_ratio_is_taken_turn_by_turn_and_not_of_medians() -> None:
    """The median ratio is 3, where the ratio of the medians is 2."""
    assert floor_ratios(ROWS[1], ROWS) == {"floor": (3.0, 1.0, 5.0)}
    assert MedianSpan.of(floor_ratios(ROWS[1], ROWS)["floor"]).median == 3.0
    assert MedianSpan.of(ROWS[1].readings).median / MedianSpan.of(ROWS[0].readings).median == 2.0


def test_a_floor_is_found_among_rows_of_the_same_unit() -> None:
    assert floor_ratios(ROWS[3], ROWS) == {"floor": (1.5, 2.0, 1.0)}


def test_a_floor_that_costs_nothing_measurable_leaves_no_number() -> None:
    rows = [CostRow("floor", "ms", (0.0,)), CostRow("ours", "ms", (1.0,), ("floor",))]
    assert floor_ratios(rows[1], rows) == {"floor": (math.inf,)}
    described = costs_as_json({"part": rows}, MACHINE, 1.0)["parts"]["part"][1]
    assert described["ratios"]["floor"]["median"] is None


def test_an_interval_needs_six_turns() -> None:
    five, six = MedianSpan.of(range(1, 6)), MedianSpan.of(range(1, 7))
    assert (five.low, five.high) == (-math.inf, math.inf)
    assert (six.low, six.high) == (1.0, 6.0)


def test_the_table_says_a_figure_once_and_each_floor_in_a_line() -> None:
    rows = [
        CostRow("wire", "MB/s", (2000.0,) * 6),
        CostRow("copy", "MB/s", (4000.0,) * 6),
        CostRow("ours", "MB/s", (1000.0,) * 6, ("wire", "copy")),
    ]
    lines = [line.split() for line in cost_table(rows).splitlines()]
    assert lines[0] == ["unit", "median", "95", "%", "over", "ratio", "95", "%"]
    assert lines[1] == ["wire", "MB/s", "2,000", "2,000", "to", "2,000"]
    assert lines[3][2:] == ["1,000", "1,000", "to", "1,000", "wire", "0.5", "0.5", "to", "0.5"]
    assert lines[4] == ["copy", "0.25", "0.25", "to", "0.25"]


def test_where_turns_are_too_few_the_table_has_no_interval() -> None:
    assert cost_table(ROWS).splitlines()[1].split() == ["floor", "ms", "2", "-"]


def test_the_json_has_readings_machine_and_versions() -> None:
    described = costs_as_json({"part": ROWS}, MACHINE, 2.5)
    assert described["machine"] == {"processor": "a processor", "cores": 2, "load_before": 0.5}
    assert described["seconds"] == 2.5
    assert {"python", "nats-py", "uvloop"} <= set(described["versions"])
    ours = described["parts"]["part"][1]
    assert ours["readings"] == (3.0, 4.0, 10.0)
    assert (ours["median"], ours["low"], ours["high"]) == (4.0, None, None)
    assert ours["ratios"]["floor"]["median"] == 3.0
