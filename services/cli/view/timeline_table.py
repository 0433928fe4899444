"""A request's timeline as a table: one row per phase, with a bar where it lay."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb

TIMES_WIDTH = 2 * (2 + 9)
LEAST_BAR_WIDTH = 8
"""The least width of a bar: where less is left there are no bars."""


def timeline_table(timeline: pb.Timeline, width: int) -> str:
    """Rows in order of time, as wide as the terminal, in milliseconds. Ends with a line end."""
    names = max([len(phase.name) for phase in timeline.phases] + [len("phase")])
    bars = width - names - TIMES_WIDTH - len("  ")
    lines = ["", f"{'phase':{names}}  {'start ms':>9}  {'took ms':>9}"]
    for phase in sorted(timeline.phases, key=lambda phase: phase.start_us):
        bar = _bar(phase.start_us, phase.duration_us, timeline.total_us, bars)
        row = f"{phase.name:{names}}  {phase.start_us / 1e3:9.2f}  {phase.duration_us / 1e3:9.2f}  {bar}"
        lines.append(row.rstrip())
    useful = f"useful {timeline.useful_us / 1e3:.2f} ms, " if timeline.useful_us else ""
    first, total = f"first token {timeline.ttft_us / 1e3:.2f} ms", f"total {timeline.total_us / 1e3:.2f} ms"
    region = f", computed in {timeline.region}" if timeline.region else ""
    lines.append(f"{first}, {useful}{total}{region}")
    return "\n".join(lines) + "\n"


def _bar(start_us: int, duration_us: int, total_us: int, width: int) -> str:
    if total_us <= 0 or width < LEAST_BAR_WIDTH:
        return ""
    start = min(width - 1, start_us * width // total_us)
    end = min(width, (start_us + duration_us) * width // total_us)
    return " " * start + "█" * max(1, end - start)
