"""python -m services.detokenizer"""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.detokenizer.config import DetokenizerConfig
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("detokenizer", DetokenizerConfig)

    from services.detokenizer.service_body import body
    from shared.process.service import run_service


if __name__ == "__main__":
    run_service("detokenizer", DetokenizerConfig, body)
