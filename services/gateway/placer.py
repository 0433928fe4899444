"""Placing a request: ask Open, Reserve and Prefill together, elsewhere again when a worker says no."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from services.gateway.admission_queue import CLASSES, STARTED_CLASS, AdmissionQueue, Ticket
from services.gateway.avoided_instances import AvoidedInstances, backoff_s
from services.gateway.block_names import BlockNames
from services.gateway.config import GatewayConfig
from services.gateway.placement import Need, Placement, choose_placement, missing_role, needed_blocks, serving
from services.gateway.request import Request
from services.gateway.request_client import RequestClient, unexpected_answer
from services.gateway.sent_load import Load, SentLoad
from services.gateway.session_state import SessionState, is_final
from services.gateway.waiting import wait_for_placed_roles
from shared.bus.fleet import FleetView, InstanceView
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import DeadlineExpired, PenstockError, Unavailable
from shared.kv_hash import HASH_BLOCK_TOKENS
from shared.messages import Accepted, Message, Open, Prefill, Reserve, pack_hashes, pack_ids
from shared.tasks import cancel_until_done
from shared.text.incremental import PROMPT_TAIL_TOKENS


class Refused(Exception):
    """One instance did not take the request."""

    def __init__(self, role: str, instance: str, error: PenstockError) -> None:
        super().__init__(str(error))
        self.role = role
        self.instance = instance
        self.error = error


class Placer:
    """Places one request, as often as needed. `cancel_epoch(reason)` tells the holders of a failed epoch."""

    def __init__(
        self,
        request: Request,
        state: SessionState,
        *,
        gateway: str,
        model: str,
        prompt_ids: tuple[int, ...],
        block_names: BlockNames,
        fleet: FleetView,
        config: GatewayConfig,
        request_client: RequestClient,
        sent_load: SentLoad,
        admission_queue: AdmissionQueue,
        rotation: int,
        cancel_epoch: Callable[[str], None],
    ) -> None:
        self._request = request
        self._state = state
        self._gateway = gateway
        self._model = model
        self._prompt_ids = prompt_ids
        self._block_names = block_names
        self._fleet = fleet
        self._config = config
        self._request_client = request_client
        self._sent_load = sent_load
        self._admission_queue = admission_queue
        self._rotation = rotation
        self._cancel_epoch = cancel_epoch
        self._avoided = AvoidedInstances()
        self._arrived_s = SYSTEM_CLOCK.monotonic_s()

    async def place_request(self, deadline: Deadline, asked: Callable[[], None]) -> None:
        """Return when all three workers hold the request; `asked` is called when they have been asked.

        Raises what no worker would answer differently, Overloaded when all are full, Unavailable when
        none is there.
        """
        ticket = self._ticket(deadline)
        wait_s = min(self._config.admit_wait_s, self._config.place_share * deadline.remaining_s())
        until: Deadline | None = None  # for roles that have no instance, one after the other or in turn
        refusals = 0
        for attempt in itertools.count():
            async with self._admission_queue.turn(ticket):
                until = until or Deadline.after(wait_s)
                refused = await self._try_placement(deadline, until, attempt, asked)
            if refused is None:
                return
            # Who is gone is waited for; who is full is not asked for ever.
            refusals += not isinstance(refused.error, Unavailable)
            most = self._config.max_place_tries
            if until.expired() if isinstance(refused.error, Unavailable) else refusals >= most:
                raise refused.error from refused
            await asyncio.sleep(backoff_s(attempt))

    async def _try_placement(
        self, deadline: Deadline, until: Deadline, attempt: int, asked: Callable[[], None]
    ) -> Refused | None:
        """One epoch: None when all three have taken it, or when it is not needed any more."""
        placement = await self._choose(until, attempt)
        if self._state.finish:
            return None  # the last row of the failed placement came while we waited
        self._state.begin_epoch(placement)
        layout = self._layout_of(placement)
        ids, hashes = self._sequence(layout)  # only now: until the new epoch, rows of the old one count
        try:
            await self._ask_all(placement, ids, hashes, deadline, asked)
        except Refused as refused:
            self._cancel_epoch("replaced")
            if is_final(refused.error):
                raise refused.error from refused
            self._avoid(refused)
            return refused
        self._state.placed()
        return None

    def _ticket(self, deadline: Deadline) -> Ticket:
        output_tokens = self._request.sampling.max_tokens - len(self._state.log.ids)
        tokens = len(self._prompt_ids) + len(self._state.log.ids) + output_tokens
        return Ticket(
            model=self._model,
            priority_class=STARTED_CLASS if self._state.log.ids else CLASSES[self._request.priority],
            deadline=deadline,
            blocks=needed_blocks(tokens),
            arrived_s=self._arrived_s,
        )

    def avoid_failed(self, trouble: PenstockError) -> None:
        """The placement failed: its replacement goes elsewhere than to who failed it, if there is another."""
        placement = self._state.placement
        instance = "" if placement is None else placement.instance_of(trouble.hop)
        view = self._fleet.get(trouble.hop, instance) if instance else None
        if view is not None:
            self._avoided.add_failed(view)

    def _sequence(self, layout: str) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Prompt and log as one prompt, with the names of its blocks for workers of `layout`."""
        ids = self._prompt_ids + tuple(self._state.log.ids)
        return ids, self._block_names.names_of(ids, layout)

    def _layout_of(self, placement: Placement) -> str:
        """The KV layout of the chosen workers; any will do when they are gone since."""
        view = self._fleet.get("decode", placement.decode)
        return view.heartbeat.layout if view is not None else self._block_names.layout

    async def _choose(self, until: Deadline, attempt: int) -> Placement:
        """A placement on instances that may be tried now; waits for roles that have none."""
        placed = await wait_for_placed_roles(self._usable, until)
        usable = {**placed, "speculator": self._usable("speculator")}
        fleet = {role: [self._sent_load.with_sent(view) for view in views] for role, views in usable.items()}
        busy = self._avoided.busy()
        if missing_role(fleet, busy):
            busy = set()  # all of a role are full: ask again rather than give up
        ids, hashes = self._sequence(self._block_names.layout)
        left = self._request.sampling.max_tokens - len(self._state.log.ids)
        need = Need(hashes, len(ids), left)
        return choose_placement(fleet, need, excluded=busy, rotation=self._rotation + attempt)

    def _usable(self, role: str) -> list[InstanceView]:
        """Instances of `role` that serve the model and are not known to be gone."""
        return self._avoided.not_gone(serving(self._fleet.instances(role), role, self._model))

    async def _ask_all(
        self,
        placement: Placement,
        ids: tuple[int, ...],
        hashes: tuple[bytes, ...],
        deadline: Deadline,
        asked: Callable[[], None],
    ) -> None:
        """All three at once; the first refusal ends the other two.

        A refusal is an answer, so no task group: it would turn the first one into a cancel of this task.
        """
        messages = self._messages(placement, ids, hashes, deadline)
        loads = self._note_sent(placement, ids, hashes)
        asks = [
            asyncio.create_task(
                self._ask_one(role, instance, message, deadline, loads[role]), name=f"ask-{instance}"
            )
            for (role, instance), message in messages.items()
        ]
        asked()
        try:
            await asyncio.wait(asks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await cancel_until_done(*asks)
            for load in loads.values():
                if load.answered_s is None:
                    self._sent_load.drop(load)
        errors = [error for ask in asks if not ask.cancelled() and (error := ask.exception()) is not None]
        if errors:
            raise _gravest(errors)

    def _note_sent(
        self, placement: Placement, ids: tuple[int, ...], hashes: tuple[bytes, ...]
    ) -> dict[str, Load]:
        """By role. Until heartbeats show it, others are not sent there as if nothing had been."""
        prefill = self._fleet.get("prefill", placement.prefill)
        cached = 0 if prefill is None else prefill.overlap(hashes) * HASH_BLOCK_TOKENS
        left = self._request.sampling.max_tokens - len(self._state.log.ids)
        sent = self._sent_load
        return {
            "prefill": sent.add("prefill", placement.prefill, tokens=len(ids) - cached),
            "decode": sent.add("decode", placement.decode, blocks=needed_blocks(len(ids) + left)),
            "detokenizer": sent.add("detokenizer", placement.detokenizer),
        }

    async def _ask_one(
        self, role: str, instance: str, message: Message, deadline: Deadline, load: Load
    ) -> None:
        # Noted before it is sent: from then on the instance may hold something.
        self._state.holders.add((role, instance))
        try:
            answer = await self._request_client.ask_instance(
                role, instance, message, deadline.shrink(self._config.ask_timeout_s), epoch=self._state.epoch
            )
        except DeadlineExpired as error:
            late = Unavailable(f"{instance} did not answer in time: retry", hop=role)
            raise Refused(role, instance, error if deadline.expired() else late) from error
        except Unavailable as error:
            raise Refused(role, instance, error) from error
        except PenstockError as error:
            self._state.holders.discard((role, instance))
            raise Refused(role, instance, error) from error
        if not isinstance(answer, Accepted):
            raise Refused(role, instance, unexpected_answer(answer, role))
        self._sent_load.took(load)
        if role == "prefill" and not self._state.replacements:
            self._state.cached_tokens = answer.cached_tokens

    def _messages(
        self,
        placement: Placement,
        ids: tuple[int, ...],
        hashes: tuple[bytes, ...],
        deadline: Deadline,
    ) -> dict[tuple[str, str], Message]:
        log, request = self._state.log, self._request
        token_ids, packed_hashes = pack_ids(ids), pack_hashes(hashes)
        return {
            ("detokenizer", placement.detokenizer): Open(
                gateway=self._gateway,
                prompt_tail=pack_ids(self._prompt_ids[-PROMPT_TAIL_TOKENS:]),
                replay=pack_ids(log.ids),
                emitted_chars=log.emitted_chars,
                next_position=log.next_position,
                stop=request.stop,
                prefill=placement.prefill,
                decode=placement.decode,
            ),
            ("decode", placement.decode): Reserve(
                token_ids=token_ids,
                prompt_len=len(self._prompt_ids),
                block_hashes=packed_hashes,
                sampling=request.sampling,
                gateway=self._gateway,
                detokenizer=placement.detokenizer,
                prefill=placement.prefill,
                speculator=placement.speculator,
                priority=request.priority,
                inter_token_us=1000 * (request.inter_token_deadline_ms or 0),
            ),
            ("prefill", placement.prefill): Prefill(
                token_ids=token_ids,
                prompt_len=len(self._prompt_ids),
                block_hashes=packed_hashes,
                sampling=request.sampling,
                gateway=self._gateway,
                detokenizer=placement.detokenizer,
                decode=placement.decode,
                priority=request.priority,
                first_token_us=deadline.to_unix_us(),
            ),
        }

    def _avoid(self, refused: Refused) -> None:
        view = self._fleet.get(refused.role, refused.instance)
        if view is None:
            return
        if isinstance(refused.error, Unavailable):
            self._avoided.add_gone(view)
        else:
            self._avoided.add_busy(view)


def _gravest(errors: Sequence[BaseException]) -> BaseException:
    """What nobody expects first, then what cannot be helped, then what time may help."""

    def rank(error: BaseException) -> tuple[bool, bool, bool]:
        if not isinstance(error, Refused):
            return False, False, False
        return True, not is_final(error.error), isinstance(error.error, Unavailable)

    return min(errors, key=rank)
