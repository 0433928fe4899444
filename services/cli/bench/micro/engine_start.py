"""The floor of a cold start, a process: its imports and the engine with the demo model, and nothing else."""

from __future__ import annotations

import sys

from services.cli.bench.micro.peer_process import greet
from shared.engine import Engine, EngineConfig
from shared.text.model_source import DEMO_MODEL

if __name__ == "__main__":
    engine = Engine(EngineConfig(model_dir=str(DEMO_MODEL)))
    greet("ready")
    sys.stdin.read()
