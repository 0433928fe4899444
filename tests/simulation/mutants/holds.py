"""Faults in what is held and given back, in deadlines and leases, and in who is taken for lost."""

from __future__ import annotations

from tests.simulation.mutants.mutant import Mutant

HOLDS = (
    Mutant(
        "a decoder is kept when its text has ended",
        "services.detokenizer.decoder_sessions",
        "self._sessions.pop(session.request_id, None)",
        "self._sessions.get(session.request_id, None)",
    ),
    Mutant(
        "decode does not give back a sequence",
        "services.decode.job_ends",
        "        self._book.remove(job.key)\n        self._driver.release_later(job.key)\n",
        "        self._book.remove(job.key)\n",
    ),
    Mutant(
        "prefill does not give back a prompt",
        "services.prefill.actor",
        "        self._book.remove(job.key)\n        self._driver.release_later(job.key)\n",
        "        self._book.remove(job.key)\n",
    ),
    Mutant(
        "a draft is not closed with its request",
        "services.decode.job_ends",
        "        self._drafting.book.close_draft(job.key)\n        self._book.remove",
        "        self._book.remove",
    ),
    Mutant(
        "a cancel ends no job",
        "shared.worker.worker_actor",
        "        for job in jobs:\n            await self._stop(job, reason)\n        warmed",
        "        warmed",
    ),
    Mutant(
        "a session stays registered",
        "services.gateway.session.session_registry",
        "            del self._live[session.request_id]\n",
        "",
    ),
    Mutant(
        "a deadline is read by the clock of who stamped it",
        "shared.deadline",
        "(steady_us + offset_us - clock.steady_us())",
        "(steady_us - clock.steady_us())",
    ),
    Mutant(
        "a deadline that has passed ends no request at the gateway",
        "services.gateway.session.session",
        "                if deadline.expired():\n",
        "                if deadline.expired() and not self.state.epoch:\n",
    ),
    Mutant(
        "a lease lasts for ever",
        "shared.actor.lease",
        "if now_s >= lease.until_s]",
        "if now_s < 0]",
    ),
    Mutant(
        "a silent route is watched for ever",
        "services.gateway.session.route_watch",
        "stall_s = self._config.stall_timeout_s",
        "stall_s = 1e6",
    ),
    Mutant(
        "a preempted sequence keeps its blocks",
        "shared.engine.memory.block_manager",
        "        self._blocks.free(sequence.all_blocks)\n        sequence.tables = []\n"
        "        sequence.num_computed = 0\n",
        "        sequence.tables = []\n        sequence.num_computed = 0\n",
    ),
    Mutant(
        "the block that a copy was made of is kept",
        "shared.engine.memory.block_manager",
        "            self._blocks.free([table.blocks[index]])\n",
        "            pass\n",
    ),
    Mutant(
        "a request that has ended keeps its slot",
        "services.gateway.admission.request_meter",
        "            self._slots.give_back(self.share.tenant)\n",
        "",
    ),
    Mutant(
        "who has been placed counts as being placed",
        "services.gateway.admission.admission_queue",
        "            self._placing_models[ticket.model] -= 1\n",
        "",
    ),
    Mutant(
        "a client that leaves leaves its work",
        "services.gateway.session.route_holders",
        '            reason = "stop"\n',
        '            reason = "stop"\n        if outcome.word == "cancelled":\n            return\n',
    ),
    Mutant(
        "a cancel that nobody acknowledged is told once alone",
        "services.gateway.fleet.canceller",
        '        self._again.start(f"cancel-again-{request_id}", again)\n',
        "        again.close()\n",
    ),
    Mutant(
        "an ask is not sent again after a reconnection",
        "shared.bus.open_asks",
        "        self._peers_return = Deadline.after(PEERS_RETURN_S, self._clock)\n"
        "        self.ask_again()\n",
        "        self._peers_return = Deadline.after(PEERS_RETURN_S, self._clock)\n",
    ),
    Mutant(
        "an answer that waits for room is dropped",
        "shared.bus.bus",
        "            self._late_answers.add(envelope, answer)\n",
        "            pass\n",
    ),
    Mutant(
        "a suspect is given work",
        "shared.bus.fleet_state",
        'return self.heartbeat.state == "ready" and not self.suspect',
        'return self.heartbeat.state == "ready"',
    ),
    Mutant(
        "a request is not asked elsewhere when its worker refuses",
        "services.gateway.session.router",
        "            if isinstance(refused.error, Overloaded):\n",
        "            if isinstance(refused.error, Overloaded):\n"
        "                raise refused.error from refused\n"
        "            if isinstance(refused.error, Overloaded):\n",
    ),
)
