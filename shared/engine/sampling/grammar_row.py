"""Keep track of the masks of one sequence: which are being computed, how long they take, whether too long."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.sampling.grammar import GrammarState
from shared.engine.sampling.id_bits import IdBits
from shared.engine.sampling.mask_threads import STUCK_S, MaskJob
from shared.errors import PenstockError

MAX_MASK_S = 0.05
"""The CPU time of one mask. Ordinary ones take 10 to 300 µs, those of large grammars up to 3 ms. To take in
the token that is drawn by it takes up to two thirds as long, with Python's lock: that is bounded too."""
MAX_MASKS_S = 10.0
"""The CPU time of all masks of a sequence, of what they take beside its steps."""
QUICK_IN_TURN = 4
"""A sequence whose mask was late is one of the quick again after so many masks that were not; after twice as
many each time it is late."""
LOCK_S = 0.0005
"""The wait of a draw for other sequences of the same grammar."""


class GrammarRow:
    """A sequence with a grammar, as the sampler sees it."""

    def __init__(self, state: GrammarState) -> None:
        self.state = state
        self.is_slow = False
        """No step waits for its masks."""
        self._job: MaskJob | None = None
        self._spent_s = 0.0
        self._quick_in_turn = 0
        self._times_late = 0

    def begin(self, drafts: Sequence[int]) -> MaskJob | None:
        """Return the job of its next masks, to be run; None where one is on its way."""
        if self._job is not None:
            return None
        self._job = MaskJob(self.state, drafts, is_proven=self.is_proven)
        return self._job

    @property
    def is_proven(self) -> bool:
        """Its masks were quick, so many in turn that the next one may be expected to be."""
        return self._quick_in_turn >= QUICK_IN_TURN << self._times_late

    @property
    def is_ready(self) -> bool:
        """Its masks are there, or will never be."""
        return self._job is not None and (self._job.is_done or self.fault is not None)

    @property
    def fault(self) -> PenstockError | None:
        """Why it cannot go on."""
        job = self._job
        if job is None:
            return None
        if job.fault is not None:
            return job.fault
        if job.mask_cpu_s > MAX_MASK_S:
            return self.state.too_complex(
                f"to find what may follow at one place takes over {1000 * MAX_MASK_S:.0f} ms of computing"
            )
        if self.state.has_held_up_others:
            return self.state.holds_up_others()
        if self._spent_s + job.cpu_s > MAX_MASKS_S:
            return self.state.too_complex(
                f"to find what may follow has taken over {MAX_MASKS_S:.0f} s of computing in all"
            )
        return None

    def hold(self) -> bool:
        """Keep other sequences of the grammar from computing; False where one does just now."""
        return self.state.lock.acquire(timeout=LOCK_S)

    def let_go(self) -> None:
        self.state.lock.release()

    def masks(self, num_draws: int) -> Sequence[IdBits | None]:
        assert self._job is not None
        return self._job.masks[:num_draws]

    def miss(self) -> None:
        """A step goes on without its masks."""
        job = self._job
        assert job is not None
        job.awaited = True
        if not self.is_slow and job.cpu_s >= STUCK_S:
            self._be_slow()

    def end_draw(self) -> None:
        """Its masks were used: what comes next needs others."""
        job = self._job
        assert job is not None
        self._job = None
        self._spent_s += job.cpu_s
        if job.mask_cpu_s < STUCK_S:
            self._quick_in_turn += 1
        elif job.held_up_step:
            self._be_slow()
        else:
            self._quick_in_turn = 0
        if self.is_proven:
            self.is_slow = False

    def _be_slow(self) -> None:
        self.is_slow = True
        self._quick_in_turn = 0
        self._times_late += 1
