"""Find a running request another decode worker, when its own one leaves or is hard pressed: the same epoch
goes on there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from services.gateway.fleet.relief import relieves
from services.gateway.fleet.request_client import unexpected_answer
from services.gateway.fleet.route_trials import RouteTrials
from services.gateway.fleet.routing import (
    Need,
    RoutingDecision,
    decodes_by_cost,
    leave_out,
)
from services.gateway.fleet.waiting import POLL_S
from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.request_scope import RequestScope
from services.gateway.scope.session_state import RequestPhase
from services.gateway.session.expected_answer import ExpectedAnswer
from services.gateway.session.route_messages import reserve_message
from shared.blocks.room import blocks_ahead
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.errors import InvalidRequest, NoAnswer, Overloaded, PenstockError, StaleEpoch, Unavailable
from shared.messages import Accepted, AllowSuccessor, HandOver, HandOverDone, Message, Reserve, Successor

MOST_ASKED_SUCCESSORS = 3
"""Decode workers that are asked for one hand-over, the best first, before it is given up."""
SEARCH_S = 4.0
"""The longest search: less than the worker that leaves waits for its answer."""


class SuccessorSearch:
    """The searches for one request, one at a time."""

    def __init__(
        self, scope: RequestScope, prepared: PreparedPrompt, trials: RouteTrials, expected: ExpectedAnswer
    ) -> None:
        self._scope = scope
        self._expected = expected
        self._prepared = prepared
        self._trials = trials
        self._state = scope.state
        self._context = scope.context
        self._share = scope.worker_share
        self._answer_scope = scope.answer_scope
        self._searching = False

    async def find(self, epoch: int, asked: HandOver, sender: str, total: Deadline) -> Successor:
        """Have a decode worker make room for what `sender` decodes, with the tokens up to a position.

        Raises StaleEpoch where the request is not decoded there any more, Overloaded where nobody has room,
        Unavailable where a search is under way or the request cannot be moved now.
        """
        route = self._route_of(epoch, sender)
        if self._searching:
            raise Unavailable("a successor of this request is being looked for already", hop="gateway")
        self._searching = True
        try:
            return await self._find(route, asked, total.shrink(SEARCH_S))
        finally:
            self._searching = False

    def take_over(self, epoch: int, handed: HandOverDone, sender: str) -> bool:
        """`sender` says who has the request now; whether that is the one that was named. From now on that one
        is blamed for what happens."""
        state, route = self._state, self._state.route
        if epoch != state.epoch or route is None or sender not in ("", route.decode):
            return False
        if not state.successor or handed.decode != state.successor:
            return False
        state.let_go("decode", route.decode)
        state.route = replace(route, decode=state.drop_successor())
        self._scope.timeline.note_hand_over(handed.decode, handed.counts)
        self._trials.move("decode", handed.decode)
        self._context.sent_load.end("decode", route.decode)
        view = self._context.fleet.get("decode", handed.decode)
        if view is not None:
            self._scope.crash_record.move(view)
        return True

    # ---- the search ---------------------------------------------------------------------------------

    async def _find(self, route: RoutingDecision, asked: HandOver, deadline: Deadline) -> Successor:
        await self._withdraw(route)  # who was named before has not got it
        await self._until_has(asked.position, route, deadline)
        leaving = self._context.fleet.get("decode", route.decode)
        if leaving is None:
            raise Unavailable(f"{route.decode} is not known here any more", hop="decode")
        reserve, need = self._question(route, asked.position, leaving)
        better = " and is notably better off" if asked.relief else ""
        refused: PenstockError = Overloaded(
            f"no other decode worker of the same model and KV layout has room{better}", hop="decode"
        )
        for candidate in self._candidates(leaving, need, asked.relief)[:MOST_ASKED_SUCCESSORS]:
            instance = candidate.heartbeat.instance
            try:
                await self._allow(route, instance, deadline)
                self._state.name_successor(instance)
                await self._ask_room(instance, reserve, need, deadline)
            except PenstockError as error:
                refused = error
                if isinstance(error, NoAnswer | Unavailable):  # it may hold something
                    await self._withdraw(route)
                else:
                    self._state.let_go("decode", self._state.drop_successor())
            else:
                return Successor(instance)
            self._check_route(route)
        raise refused

    def _route_of(self, epoch: int, sender: str) -> RoutingDecision:
        state, route = self._state, self._state.route
        decoded = state.phase is RequestPhase.DECODE and epoch == state.epoch
        if not decoded or route is None or sender not in ("", route.decode):
            raise StaleEpoch("the request is not decoded there any more", hop="gateway")
        if not state.told.complete:
            raise Unavailable("log-probabilities of its prompt are still on their way", hop="gateway")
        self._check_route(route)
        return route

    def _check_route(self, route: RoutingDecision) -> None:
        if self._state.route is not route or self._state.finish or self._state.is_let_go:
            raise StaleEpoch("the request has ended, or is routed anew", hop="gateway")

    async def _until_has(self, position: int, route: RoutingDecision, deadline: Deadline) -> None:
        """Wait for tokens on their way: a successor is told what the client gets, and nothing else."""
        while self._state.log.next_position < position:
            deadline.check("gateway")
            await asyncio.sleep(min(POLL_S, max(0.0, deadline.remaining_s())))
            self._check_route(route)

    def _question(self, route: RoutingDecision, position: int, leaving: InstanceView) -> tuple[Reserve, Need]:
        """Return what a successor is asked, and the room that it needs. Raises InvalidRequest."""
        request, prompt_ids = self._prepared.request, self._prepared.token_ids
        ids = (*prompt_ids, *self._state.log.ids)[: max(0, position)]
        if len(ids) <= len(prompt_ids):
            raise InvalidRequest(f"there is no output before position {position}; hand over what has some")
        hashes = self._prepared.request_hashes.hashes_of(ids, leaving.heartbeat.worker.layout)
        reserve = reserve_message(
            route,
            request,
            self._context.instance,
            ids,
            len(prompt_ids),
            hashes,
            self._prepared.model.adapter,
            self._share,
            self._answer_scope,
            source=route.decode,
            incarnation=leaving.heartbeat.incarnation,
            thinking=self._scope.budget.thinking,
            expected_tokens=self._expected.most_tokens,
        )
        return reserve, Need(hashes, len(ids), self._expected.left_after(len(ids) - len(prompt_ids)))

    def _candidates(self, leaving: InstanceView, need: Need, relief: str) -> list[InstanceView]:
        """Return other workers that the KV may go to and that have room by what is known, the best first;
        only those that relieve one that stays."""
        own, loaded = leaving.heartbeat, self._context.sent_load.with_sent
        views = [
            view
            for view in self._context.served.serving("decode", self._prepared.model)
            if view.heartbeat.instance != own.instance and view.heartbeat.worker.layout == own.worker.layout
        ]
        left = leave_out(views, self._context.breakers.shunned(views, self._scope.request_id))
        regions = self._context.regions
        if regions is not None:
            left = regions.successors(left, leaving, need, stays=bool(relief))
        found = decodes_by_cost(left, loaded, need)
        if regions is not None:
            found.sort(key=lambda view: view.heartbeat.region != own.region)
        if not relief:
            return found
        blocks = self._blocks(need)
        return [view for view in found if relieves(relief, own, loaded(view).heartbeat, blocks)]

    def _blocks(self, need: Need) -> int:
        """Return the KV blocks that a successor makes room for."""
        groups = self._context.served.kv_groups(self._prepared.model)
        return blocks_ahead(need.tokens, need.output_tokens, groups)

    # ---- asking -------------------------------------------------------------------------------------

    async def _allow(self, route: RoutingDecision, instance: str, deadline: Deadline) -> None:
        """First: a token of the successor must find its way."""
        allow = AllowSuccessor(self._context.instance, instance)
        await self._ask("detokenizer", route.detokenizer, allow, deadline)
        self._check_route(route)

    async def _ask_room(self, instance: str, reserve: Message, need: Need, deadline: Deadline) -> None:
        load = self._context.sent_load.add("decode", instance, blocks=self._blocks(need))
        try:
            await self._ask("decode", instance, reserve, deadline)
        except BaseException:
            self._context.sent_load.drop(load)
            raise
        self._context.sent_load.took(load)

    async def _ask(self, role: str, instance: str, message: Message, deadline: Deadline) -> None:
        answer = await self._scope.request_client.ask_instance(
            role, instance, message, deadline, epoch=self._state.epoch
        )
        if not isinstance(answer, Accepted):
            raise unexpected_answer(answer, role)

    async def _withdraw(self, route: RoutingDecision) -> None:
        """Tell the one that was named to give back what it holds."""
        instance = self._state.drop_successor()
        if instance and self._state.route is route:
            self._state.let_go("decode", instance)
            await self._context.canceller.withdraw(
                self._scope.request_id, self._state.epoch, "decode", instance
            )
