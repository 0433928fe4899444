"""A request's timeline as a table: one row per phase, with a bar where it lay."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb

BAR_WIDTH = 40


def timeline_table(timeline: pb.Timeline) -> str:
    """Rows in order of time; milliseconds. Ends with a line end."""
    width = max([len(phase.name) for phase in timeline.phases] + [len("phase")])
    lines = ["", f"{'phase':{width}}  {'start ms':>9}  {'took ms':>9}"]
    for phase in sorted(timeline.phases, key=lambda phase: phase.start_us):
        bar = _bar(phase.start_us, phase.duration_us, timeline.total_us)
        lines.append(
            f"{phase.name:{width}}  {phase.start_us / 1e3:9.2f}  {phase.duration_us / 1e3:9.2f}  {bar}"
        )
    lines.append(f"first token {timeline.ttft_us / 1e3:.2f} ms, total {timeline.total_us / 1e3:.2f} ms")
    return "\n".join(lines) + "\n"


def _bar(start_us: int, duration_us: int, total_us: int) -> str:
    if total_us <= 0:
        return ""
    start = min(BAR_WIDTH - 1, start_us * BAR_WIDTH // total_us)
    length = max(1, min(BAR_WIDTH - start, round(duration_us * BAR_WIDTH / total_us)))
    return " " * start + "█" * length
