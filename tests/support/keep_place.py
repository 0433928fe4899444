"""Let jobs and threads of a process keep their place that would leave the cores to all others, once imported.

Those are busy tests, beside which the lowest priority has a hundredth of a core. As a program, this is the
process of jobs of the module that its argument names.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shared.process import limited_jobs, niceness

job_command, STANDING_BACK_NICE = limited_jobs.job_command, niceness.STANDING_BACK_NICE
"""The ones that count where no test runs."""


def kept_command(module: str) -> list[str]:
    return [sys.executable, "-P", __file__, module]


niceness.STANDING_BACK_NICE = os.getpriority(os.PRIO_PROCESS, 0)
limited_jobs.job_command = kept_command

if __name__ == "__main__":
    niceness.COMPUTING_NICE = niceness.PASSING_NICE
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
