"""All planted faults."""

from __future__ import annotations

from tests.simulation.mutants.holds import HOLDS
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.streams import STREAMS
from tests.simulation.mutants.tenants import TENANTS
from tests.simulation.mutants.transfers import TRANSFERS

MUTANTS: tuple[Mutant, ...] = (*STREAMS, *TRANSFERS, *HOLDS, *TENANTS)
