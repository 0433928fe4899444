"""Sizes, counts and times of KV transfers."""

from __future__ import annotations

CHUNK_BYTES = 512 << 10
"""Body of one chunk, unless a single cell is larger."""

WINDOW_BYTES = 4 << 20
"""Credit of one transfer: what may be on its way unacknowledged."""

FIRST_WINDOW_BYTES = 256 << 10
"""Credit of a transfer of which nothing has come yet: its prompt may still be in a queue, so it must not
keep the window from those that are moving."""

RECEIVER_WINDOW_BYTES = 32 << 20
"""Credit of all transfers of one receiver together. Transfers beyond it wait for their grant."""

RESERVED_WINDOW_BYTES = 8 << 20
"""The part of it that no window grows into: first windows of transfers to come."""

ACK_BYTES = 1 << 20
"""A credit message goes out when so much has landed since the last one (or half a small window)."""

TICK_S = 0.05
"""The time between two looks at timers."""
REST_TICK_S = 5.0
"""The same where there is no transfer: then only what is remembered of the last ones has to be forgotten."""

ACK_DELAY_S = 0.1
"""The longest time that landed bytes stay unacknowledged."""

NO_PROGRESS_S = 0.5
"""A transfer that should move and did not for this long: ask again."""

MAX_REQUESTS_AGAIN = 2
"""Fruitless repetitions before a receiver gives up on a transfer whose sender said that all is sent."""

PEER_SILENCE_S = 5.0
"""A sender gives up on a receiver that acknowledges nothing for this long."""

MAX_BAD_CHUNKS = 8
"""Chunks of one transfer that failed their checksum, or whose header cannot be its own, before it is given
up: the path is broken, not unlucky."""

MAX_MISSING_CELLS = 4096
"""Cells listed in one KvMissing; the others are asked for when these have come."""

SHM_RUN_BYTES = 4 << 20
"""Bytes announced and hashed at a time over shared memory, of one layer copied: the loop is held ~0.3 ms."""

LEASE_S = 10.0
"""Blocks of an aborted transfer are kept this long for an acknowledgement that does not come."""

SPARE_TOKENS = 256
"""Tokens that a sequence may get at its sender while it is handed over: its receiver makes room for so
many."""
HALT_AFTER_TOKENS = SPARE_TOKENS // 2
"""The tokens after which it stops, whatever is still to be sent: what is under way, and drafts, must have
room as well."""

MAX_EARLY = 1024
"""Grants and aborts remembered for requests that have not arrived yet."""

MAX_TOMBSTONES = 4096
"""Ended transfers remembered, so that a repeated message gets its answer again."""

TOMBSTONE_S = 30.0

CONTROL_SENDER_LIMIT = 4096
"""Control messages waiting for the bus. Over it the newest is dropped and counted: timers send it again."""

PROBE_TIMEOUT_S = 0.5
PROBE_AGAIN_S = 5.0
"""A probe that failed for want of an answer is repeated for a transfer that starts after this time."""

MAX_WAITED_S = 3600.0
"""The longest time that a first token can have waited at its sender: no client waits so long, and what the
time of transfers is thought to be would not recover from it."""

MAX_TRANSFER_BLOCKS = 1 << 20
"""Blocks in one transfer; also bounds what a peer can make us index."""
