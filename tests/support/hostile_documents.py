"""python -m tests.support.hostile_documents: read documents by a reader that does what each one says."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from shared.process.job_runner import serve_jobs
from shared.retrieval.documents.document import Document
from shared.retrieval.documents.document_jobs import DOCUMENT_LIMITS, run_job
from shared.retrieval.documents.formats import READERS

SOON_S = 0.2
"""The CPU time that stands for MAX_READ_S."""


def read_odd_file(path: Path, name: str) -> Document:
    match path.read_text():
        case "spin":
            signal.setitimer(signal.ITIMER_PROF, SOON_S)
            while True:
                pass
        case "allocate":
            kept = [bytearray(1 << 26) for _ in range(1 << 6)]
            return Document(name, str(len(kept)), is_markdown=False)
        case "abort":
            os.abort()
        case "raise":
            raise ArithmeticError("a reader's own")
        case "system exit":
            sys.exit(7)
        case "wait":
            time.sleep(600)
    return Document(name, path.read_text(), is_markdown=False)


READERS[".txt"] = read_odd_file

if __name__ == "__main__":
    serve_jobs(run_job, DOCUMENT_LIMITS)
