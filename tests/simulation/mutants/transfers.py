"""Faults in how KV comes from one worker to another, and in the blocks that it lies in."""

from __future__ import annotations

from tests.simulation.mutants.mutant import Mutant

TRANSFERS = (
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
        "a transfer that has arrived is not remembered",
        "shared.kv.receiving.receiver",
        "        self._ended.remember_ended(incoming, self._now())\n",
        "",
    ),
    Mutant(
        "what a failed transfer held is kept",
        "shared.kv.transfer_side",
        "        if not tell:\n            self._on_released(transfer.key)\n",
        "",
    ),
    Mutant(
        "the end of a transfer is told once alone",
        "shared.kv.sending.sender",
        "        if outgoing.ask_again(now_s):\n",
        "        if outgoing.aborting and outgoing.ask_again(now_s):\n",
    ),
    Mutant(
        "a grant is told once alone",
        "shared.kv.receiving.receiver",
        "                self._grants.resend_grant(incoming)\n",
        "                pass\n",
    ),
    Mutant(
        "credit of an ended transfer is lost",
        "shared.kv.receiving.credit",
        "self.free_bytes += self._held.pop(incoming.transfer, 0)",
        "self._held.pop(incoming.transfer, 0)",
    ),
    Mutant(
        "who waits for credit is not told of what came free",
        "shared.kv.receiving.grants",
        "        self.credit.release(incoming)\n        self._grant_credit()\n",
        "        self.credit.release(incoming)\n",
    ),
    Mutant(
        "one cached block is not announced",
        "services.prefill.kv_announcer",
        "        if cached_blocks:\n",
        "        if cached_blocks > 1:\n",
    ),
    Mutant(
        "a block that a hand-over fills in part is not waited for",
        "shared.kv.receiving.incoming",
        "end = -(-(self._filled_tokens + num_tokens) // HASH_BLOCK_TOKENS)",
        "end = (self._filled_tokens + num_tokens) // HASH_BLOCK_TOKENS",
    ),
    Mutant(
        "a shared block is written to",
        "shared.engine.memory.block_manager",
        "            if index < len(table.blocks) and not self._blocks.is_own(table.blocks[index])\n",
        "            if False and not self._blocks.is_own(table.blocks[index])\n",
    ),
)
