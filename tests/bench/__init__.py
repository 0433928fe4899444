"""Benchmarks. Requests that are alike are load: each is computed by itself, unless a benchmark says else."""

import os

os.environ.setdefault("PENSTOCK_GATEWAY_COALESCE", "false")
