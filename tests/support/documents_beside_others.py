"""The process that reads documents, whose long jobs keep their place beside others.

Where a machine runs other tests on all its cores, one that stood back would wait for minutes.
"""

from __future__ import annotations

import os

from shared.process import niceness
from shared.process.job_runner import serve_jobs
from shared.retrieval.documents.document_jobs import DOCUMENT_LIMITS, run_job

if __name__ == "__main__":
    niceness.STANDING_BACK_NICE = os.getpriority(os.PRIO_PROCESS, 0)
    niceness.COMPUTING_NICE = niceness.PASSING_NICE
    serve_jobs(run_job, DOCUMENT_LIMITS)
