"""All planted faults.

Faults that another safeguard makes up for are none of them. A row of a former route says the same at the
same place, as draws are deterministic; a detokenizer says no row twice, and nats doubles none; the gateway
cancels each route that has failed, so that its worker need not; what was held for a gateway that died ends
with its lease; a worker that is gone is noticed by who asks it, or by the check whether it holds the request.

A decoder of an earlier epoch has been cancelled before the next one is opened. The text of a replay is what
its client has, as the same ids are the same text. A row over a gap is refused by the gateway, whoever let it
pass. An acknowledgement that does not come is asked for again. An ask that comes twice before it is answered
is of a kind that may be done twice. A breaker that stays half-open lets one request after another through. A
route that a late cancel has ended is silent, and the request is routed anew.
"""

from __future__ import annotations

from tests.simulation.mutants.holds import HOLDS
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.streams import STREAMS
from tests.simulation.mutants.tenants import TENANTS
from tests.simulation.mutants.transfers import TRANSFERS

MUTANTS: tuple[Mutant, ...] = (*STREAMS, *TRANSFERS, *HOLDS, *TENANTS)
