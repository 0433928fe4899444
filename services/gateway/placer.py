"""Placing a request: ask Open, Reserve and Prefill together, elsewhere again when a worker says no."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from services.gateway.avoided_instances import AvoidedInstances, backoff_s
from services.gateway.config import GatewayConfig
from services.gateway.placement import Need, Placement, choose_placement, missing_role
from services.gateway.request import Request
from services.gateway.request_client import RequestClient, unexpected_answer
from services.gateway.session_state import SessionState, is_final
from services.gateway.waiting import wait_for_instances
from shared.bus.fleet import FleetView, InstanceView
from shared.deadline import Deadline
from shared.errors import DeadlineExpired, Overloaded, PenstockError, Unavailable
from shared.kv_hash import block_hashes, hash_seed
from shared.messages import Accepted, Message, Open, Prefill, Reserve, pack_hashes, pack_ids
from shared.roles import PLACED_ROLES, TARGET_ROLES
from shared.text.incremental import PROMPT_TAIL_TOKENS

SHED_RETRY_MS = 500


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
        prompt_hashes: tuple[int, ...],
        fleet: FleetView,
        config: GatewayConfig,
        request_client: RequestClient,
        rotation: int,
        cancel_epoch: Callable[[str], None],
    ) -> None:
        self._request = request
        self._state = state
        self._gateway = gateway
        self._model = model
        self._prompt_ids = prompt_ids
        self._prompt_hashes = prompt_hashes
        self._fleet = fleet
        self._config = config
        self._request_client = request_client
        self._rotation = rotation
        self._cancel_epoch = cancel_epoch
        self._avoided = AvoidedInstances()

    async def place_request(self, deadline: Deadline, asked: Callable[[], None]) -> None:
        """Return when all three workers hold the request; `asked` is called when they have been asked.

        Raises what no worker would answer differently, Overloaded when all are full, Unavailable when
        none is there.
        """
        last: PenstockError = Unavailable("no worker took the request: retry later", hop="placement")
        for attempt in range(self._config.max_place_tries):
            placement = await self._choose(deadline, attempt)
            if self._state.finish:
                return  # the last row of the failed placement came while we waited
            self._state.begin_epoch(placement)
            ids, hashes = self._sequence()  # only now: until the new epoch, rows of the old one count
            try:
                await self._ask_all(placement, ids, hashes, deadline, asked)
            except Refused as refused:
                last = refused.error
                self._cancel_epoch("replaced")
                if is_final(last):
                    raise last from refused
                self._avoid(refused)
            else:
                self._state.placed()
                return
            await asyncio.sleep(backoff_s(attempt))
        raise _given_up(last)

    def _sequence(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt and log as one prompt, with the names of its blocks."""
        if not self._state.log.ids:
            return self._prompt_ids, self._prompt_hashes
        ids = self._prompt_ids + tuple(self._state.log.ids)
        return ids, tuple(block_hashes(ids, hash_seed(self._model)))

    async def _choose(self, deadline: Deadline, attempt: int) -> Placement:
        """A placement on instances that may be tried now; waits for a role that has none."""
        wait_s = min(self._config.admit_wait_s, self._config.place_share * deadline.remaining_s())
        until = Deadline.after(wait_s)
        for role in PLACED_ROLES:
            await wait_for_instances(partial(self._usable, role), role, until)
        fleet = {role: self._usable(role) for role in (*PLACED_ROLES, "speculator")}
        busy = self._avoided.busy()
        if missing_role(fleet, busy):
            busy = set()  # all of a role are full: ask again rather than give up
        ids, hashes = self._sequence()
        left = self._request.sampling.max_tokens - len(self._state.log.ids)
        need = Need(hashes, len(ids), left)
        return choose_placement(fleet, need, excluded=busy, rotation=self._rotation + attempt)

    def _usable(self, role: str) -> list[InstanceView]:
        """Instances of `role` that serve the model and are not known to be gone."""
        views = self._avoided.not_gone(self._fleet.instances(role))
        return [v for v in views if role not in TARGET_ROLES or v.heartbeat.model == self._model]

    async def _ask_all(
        self,
        placement: Placement,
        ids: tuple[int, ...],
        hashes: tuple[int, ...],
        deadline: Deadline,
        asked: Callable[[], None],
    ) -> None:
        """All three at once; the first refusal ends the other two."""
        messages = self._messages(placement, ids, hashes)
        try:
            async with asyncio.TaskGroup() as group:
                for (role, instance), message in messages.items():
                    group.create_task(self._ask_one(role, instance, message, deadline))
                asked()
        except* Refused as refusals:
            raise _gravest(refusals) from None

    async def _ask_one(self, role: str, instance: str, message: Message, deadline: Deadline) -> None:
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
        if role == "prefill" and not self._state.replacements:
            self._state.cached_tokens = answer.cached_tokens

    def _messages(
        self, placement: Placement, ids: tuple[int, ...], hashes: tuple[int, ...]
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


def _gravest(refusals: BaseExceptionGroup[Refused]) -> Refused:
    """What cannot be helped first, then what time may help."""
    flat = [refusal for refusal in refusals.exceptions if isinstance(refusal, Refused)]
    return min(
        flat, key=lambda refusal: (not is_final(refusal.error), isinstance(refusal.error, Unavailable))
    )


def _given_up(last: PenstockError) -> PenstockError:
    """Tried often enough: with a hint when to come back where the fleet is merely full."""
    if isinstance(last, Overloaded) and not last.retry_after_ms:
        return Overloaded(last.message, hop=last.hop, retry_after_ms=SHED_RETRY_MS)
    return last
