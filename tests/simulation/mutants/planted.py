"""The planted faults: each is one change of the product's source that breaks a promise of a protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`right` stands once in the source of `module`, inside of a function, and becomes `wrong`."""

    name: str
    module: str
    right: str
    wrong: str


MUTANTS = (
    # ---- what clients get ---------------------------------------------------------------------------
    Mutant(
        "a row that overlaps what the client has is relayed",
        "services.gateway.scope.token_log",
        "if position == end:",
        "if position <= end:",
    ),
    Mutant(
        "a gap is taken for the next row",
        "services.gateway.scope.token_log",
        "if position == end:",
        "if position >= end:",
    ),
    Mutant(
        "a new detokenizer says again what the client has",
        "services.detokenizer.decoder_session",
        "self._unsent_text = replayed.text[emitted:]",
        "self._unsent_text = replayed.text",
    ),
    Mutant(
        "the rest of a replay goes out with every row",
        "services.detokenizer.decoder_session",
        '        self._unsent_text = ""\n        self.next_position',
        "        self.next_position",
    ),
    Mutant(
        "rows that wait for others are decoded at once",
        "services.detokenizer.decoder_sessions",
        "if row.position > session.next_position:",
        "if False:",
    ),
    Mutant(
        "a slow client's event begins where its last row did",
        "services.gateway.scope.response_buffer",
        "        self._text_tokens += len(ids)\n",
        "        self._text_tokens += len(ids)\n        self._text.text.position = position\n",
    ),
    Mutant(
        "a request that was routed anew may have all its tokens again",
        "services.gateway.session.route_messages",
        "        prompt_len=len(prompt_ids),\n        block_hashes=packed_hashes,\n"
        "        sampling=untold if route.prefill else to_tell,",
        "        prompt_len=len(ids),\n        block_hashes=packed_hashes,\n"
        "        sampling=untold if route.prefill else to_tell,",
    ),
    Mutant(
        "prefill does not say that its token was the last",
        "services.prefill.actor",
        'output.token_ids, output.finish_reason or "")',
        'output.token_ids, "")',
    ),
    # ---- epochs -------------------------------------------------------------------------------------
    Mutant(
        "rows of any epoch are taken",
        "services.gateway.scope.session_state",
        "if epoch != self.epoch or self.finish or",
        "if self.finish or",
    ),
    Mutant(
        "a new route has the epoch of the one before",
        "services.gateway.scope.session_state",
        "self.epoch += 1",
        "self.epoch = max(1, self.epoch)",
    ),
    Mutant(
        "a decoder of an earlier epoch is not replaced",
        "services.detokenizer.decoder_sessions",
        "if current is not None and epoch <= current.epoch:",
        "if current is not None:",
    ),
    Mutant(
        "a worker keeps the earlier route of a request",
        "shared.worker.worker_actor",
        "if earlier.key != job.key:",
        "if earlier.key == job.key:",
    ),
    # ---- transfers ----------------------------------------------------------------------------------
    Mutant(
        "a transfer is over one cell too early",
        "shared.kv.receiving.incoming",
        "(self._missing == 0 or",
        "(self._missing <= 1 or",
    ),
    Mutant(
        "a block that is still being filled is announced",
        "services.prefill.kv_announcer",
        "if end_token == num_tokens else end_token // BLOCK_TOKENS",
        "if end_token == num_tokens else -(-end_token // BLOCK_TOKENS)",
    ),
    Mutant(
        "the first block that is wanted is not sent",
        "shared.kv.receiving.receiver",
        "blocks = RequestBlocks.of(tables, first_blocks, self._memory.groups)",
        "blocks = RequestBlocks.of(tables, [one + 1 for one in first_blocks], self._memory.groups)",
    ),
    Mutant(
        "credit is never given back",
        "shared.kv.receiving.incoming",
        "landed = self._seen_bytes - self._credited_bytes",
        "landed = 0",
    ),
    Mutant(
        "an arrived transfer is not acknowledged, now or later",
        "shared.kv.receiving.receiver",
        "self.send_control(incoming, KvReceived(incoming.transfer))",
        "self._ended.forget_expired = lambda now_s: None",
    ),
    # ---- what is held -------------------------------------------------------------------------------
    Mutant(
        "a decoder is kept when its text has ended",
        "services.detokenizer.decoder_sessions",
        "self._sessions.pop(session.request_id, None)",
        "self._sessions.get(session.request_id, None)",
    ),
    Mutant(
        "decode does not give back a sequence",
        "services.decode.actor",
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
        "services.decode.actor",
        "        self._drafts.close_draft(job.key)\n        self._book.remove",
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
    # ---- deadlines and leases -----------------------------------------------------------------------
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
    # ---- who is lost --------------------------------------------------------------------------------
    Mutant(
        "a lost prefill worker is noticed by nobody who waits for it",
        "services.gateway.session.session",
        "if self.state.needs(role, instance):",
        'if role != "prefill" and self.state.needs(role, instance):',
    ),
    Mutant(
        "a silent route is watched for ever",
        "services.gateway.session.route_watch",
        "stall_s = self._config.stall_timeout_s",
        "stall_s = 1e6",
    ),
    Mutant(
        "an ask that comes twice is done twice",
        "shared.bus.repeated_asks",
        "return ask_of(reply) in self._unanswered",
        "return False",
    ),
    Mutant(
        "a gateway that has died keeps what it held",
        "services.detokenizer.decoder_sessions",
        "for session in orphans:",
        "for session in orphans[1:]:",
    ),
)
