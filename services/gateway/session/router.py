"""Placing a request: ask Open, Reserve and Prefill together, elsewhere again when a worker says no.

There is no Prefill where the decode worker computes the prompt.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence

from services.gateway.admission.admission import check_wait
from services.gateway.admission.ticket import CLASSES, LOWEST_CLASS, STARTED_CLASS, Ticket
from services.gateway.fleet.avoided_instances import MAX_BACKOFF_S, REFUSED_S, AvoidedInstances, backoff_s
from services.gateway.fleet.best_route import BestRoute, best_route
from services.gateway.fleet.request_client import unexpected_answer
from services.gateway.fleet.route_trials import RouteTrials
from services.gateway.fleet.routing import Need, RoutingDecision
from services.gateway.fleet.sent_load import Load
from services.gateway.fleet.waiting import POLL_S, wait_for_routed_roles
from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.regions.region_routing import RegionRouting
from services.gateway.request_scope import RequestScope
from services.gateway.scope.session_state import is_final
from services.gateway.session.expected_answer import ExpectedAnswer
from services.gateway.session.route_holders import RouteHolders
from services.gateway.session.route_messages import route_messages
from shared.blocks.layer_groups import KvGroups
from shared.blocks.room import blocks_ahead
from shared.bus.fleet import InstanceView
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import NoAnswer, Overloaded, PenstockError, Unavailable
from shared.messages import Accepted, Message
from shared.roles import ROUTED_ROLES
from shared.sampling.parameters import NO_LOGPROBS
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import metrics
from shared.telemetry.labelled import labelled


class Refused(Exception):
    """One instance did not take the request."""

    def __init__(self, role: str, instance: str, error: PenstockError) -> None:
        super().__init__(str(error))
        self.role = role
        self.instance = instance
        self.error = error


class Router:
    """Places one request, as often as needed; `holders` hear that a route is over which somebody refused."""

    def __init__(self, scope: RequestScope, prepared: PreparedPrompt, holders: RouteHolders) -> None:
        context = scope.context
        self._request = prepared.request
        self._state = scope.state
        self._timeline = scope.timeline
        self._gateway = context.instance
        self._model = prepared.model
        self._prompt_ids = prepared.token_ids
        self._block_names = prepared.request_hashes
        self._fleet = context.fleet
        self._served = context.served
        self._config = scope.config
        self._request_client = scope.request_client
        self._sent_load = context.sent_load
        self._admission_queue = context.admission_queue
        self._agent_sessions = context.agent_sessions
        self._breakers = context.breakers
        self._regions = context.regions
        self._own_detokenizer = context.own_detokenizer
        self._crash_record = scope.crash_record
        self._meter = scope.meter
        self.expected = ExpectedAnswer.of(scope, prepared)
        self._thinking = scope.budget.thinking
        self._share = scope.worker_share
        self._answer_scope = scope.answer_scope
        self._request_id = scope.request_id
        self._rotation = scope.rotation
        self._holders = holders
        self._avoided = AvoidedInstances()
        self.trials = RouteTrials(self._breakers, self._fleet, self._request_id)
        self._arrived_s = SYSTEM_CLOCK.monotonic_s()

    async def route_request(self, deadline: Deadline, asked: Callable[[], None]) -> None:
        """Return when all its workers hold the request; `asked` is called when they have been asked.

        Who finds all full waits its turn again, as long as the deadline lets it come. Raises what no worker
        would answer differently, Overloaded when no turn can come in time, Unavailable when a role stays
        without an instance.
        """
        ticket = self._ticket(deadline)
        until: Deadline | None = None  # for roles that have no instance, one after the other or in turn
        failures = 0
        for attempt in itertools.count():
            began_s = SYSTEM_CLOCK.monotonic_s()
            async with self._admission_queue.turn(ticket) as turn:
                if turn.waited:
                    self._timeline.mark_phase("line")
                    self._record_wait(began_s)
                until = until or Deadline.after(self._wait_s(deadline))
                refused = await self._try_route(deadline, until, attempt, asked, guest=turn.guest)
            if refused is None:
                return
            if isinstance(refused.error, Overloaded):
                self._check_turn(ticket, refused.role, refused.error, deadline)
                until = None
            elif isinstance(refused.error, Unavailable) and not until.expired():
                pass
            elif failures >= self._config.max_replacements:
                raise refused.error from refused
            else:  # what was spent on asking was no waiting: there may be another instance
                failures += 1
                until = None
            await self._back_off(refused.role, attempt)

    async def _try_route(
        self, deadline: Deadline, until: Deadline, attempt: int, asked: Callable[[], None], *, guest: bool
    ) -> Refused | None:
        """One epoch: None when all have taken it, or when it is not needed any more."""
        best = await self._choose(until, attempt, deadline)
        if self._state.finish:
            return None  # the last row of the failed route came while we waited
        route = best.decision
        self._state.begin_epoch(route)
        self.trials.begin(route)
        self._crash_record.begin_epoch(self.trials.views.values(), route.prompt_role)
        layout = self._layout_of(route)
        ids, hashes = self._sequence(layout)  # only now: until the new epoch, rows of the old one count
        try:
            await self._ask_all(best, ids, hashes, deadline, asked, guest=guest)
        except Refused as refused:
            self.trials.end()
            self._holders.cancel_route(refused.error.code)
            if is_final(refused.error):
                raise refused.error from refused
            self._avoid(refused)
            return refused
        self._state.routed()
        labelled(metrics.ROUTING_DECISIONS, "disaggregated" if route.prefill else "local").inc()
        if self._regions is not None:
            self._regions.record_route(route)
        return None

    def _wait_s(self, deadline: Deadline) -> float:
        """Return how long to wait for a role without a ready instance: not at all where another model may
        answer."""
        if self._request.may_fall_back and not self._state.log.ids:
            return 0.0
        return min(self._config.admit_wait_s, self._config.place_share * deadline.remaining_s())

    def _check_turn(self, ticket: Ticket, role: str, full: Overloaded, deadline: Deadline) -> None:
        """Raise Overloaded when no other turn can come in time, as the queue or all of the role say."""
        remaining_s = deadline.remaining_s()
        check_wait(self._admission_queue.remaining_wait_s(ticket), remaining_s)
        if remaining_s <= max(self._avoided.room_in_s(self._usable(role)), MAX_BACKOFF_S):
            raise full

    async def _back_off(self, role: str, attempt: int) -> None:
        """A little longer each time; where all of a role have refused, until one tells what room it has."""
        await asyncio.sleep(backoff_s(attempt))
        until = Deadline.after(REFUSED_S)
        while (views := self._usable(role)) and len(self._avoided.refused(views)) == len(views):
            if until.expired():
                return
            await asyncio.sleep(POLL_S)

    def avoid_failed(self, trouble: PenstockError) -> None:
        """The route failed: its replacement goes elsewhere than to who failed it, if there is another."""
        if trouble.hop in self.trials.views:
            self._avoided.add_failed(self.trials.views[trouble.hop])
        self.trials.fail(trouble.hop, trouble)
        self.trials.end()

    def _ticket(self, deadline: Deadline) -> Ticket:
        tokens = len(self._prompt_ids) + len(self._state.log.ids)
        return Ticket(
            model=self._model,
            priority_class=STARTED_CLASS if self._state.log.ids else CLASSES[self._request.priority],
            deadline=deadline,
            blocks=blocks_ahead(tokens, self.expected.most_left, self._kv_groups),
            arrived_s=self._arrived_s,
            meter=self._meter,
            tokens=tokens,
            output_tokens=self.expected.mean_left,
            waited_s=self._agent_sessions.waited_s(self._meter.share.tenant, self._request.agent),
        )

    def _record_wait(self, began_s: float) -> None:
        """Its agent's next calls go as far ahead as this one has waited."""
        if self._request.agent is not None:
            self._agent_sessions.record_wait(self._meter.share.tenant, self._request.agent, began_s)

    @property
    def _kv_groups(self) -> KvGroups:
        return self._served.kv_groups(self._model)

    def _sequence(self, layout: str) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Prompt and log as one prompt, with the names of its blocks for workers of `layout`."""
        ids = self._prompt_ids + tuple(self._state.log.ids)
        return ids, self._block_names.hashes_of(ids, layout)

    def _layout_of(self, route: RoutingDecision) -> str:
        """The KV layout of the chosen workers; any will do when they are gone since."""
        view = self._fleet.get("decode", route.decode)
        return view.heartbeat.worker.layout if view is not None else self._block_names.layout

    async def _choose(self, until: Deadline, attempt: int, deadline: Deadline) -> BestRoute:
        """A route on instances that may be tried now; waits for roles that have none."""
        routed = await wait_for_routed_roles(self._usable, until, adapter=self._model.adapter.name)
        views = [view for found in routed.values() for view in found]
        shunned = self._breakers.shunned(views, self._request_id) | self._avoided.failed(views)
        ids, hashes = self._sequence(self._block_names.layout)
        return best_route(
            routed,
            self._usable("speculator") if self._config.use_speculator else (),
            Need(
                hashes,
                len(ids),
                self.expected.most_left,
                scored=self._wants_scores,
                left_s=math.inf if self._is_lowest else deadline.remaining_s(),
            ),
            shunned,
            self._avoided.refused(views),
            sent_load=self._sent_load,
            most_local_tokens=self._config.local_prefill_tokens,
            rotation=self._rotation + attempt,
            by_place=self._by_place(deadline),
            own_detokenizer=self._own_detokenizer,
        )

    def _by_place(self, deadline: Deadline) -> RegionRouting | None:
        if self._regions is None:
            return None
        return self._regions.routing(
            self._model,
            deadline.remaining_s(),
            may_compute_at_decode=self._config.local_prefill_tokens > 0,
        )

    @property
    def _is_lowest(self) -> bool:
        """Whether others go before it whatever its deadline."""
        return CLASSES[self._request.priority] == LOWEST_CLASS

    @property
    def _wants_scores(self) -> bool:
        return self._request.sampling.prompt_logprobs != NO_LOGPROBS and not self._state.told.complete

    def end(self) -> None:
        """The request is over."""
        self.trials.end()
        self.expected.record_end()
        if self._state.finish and self._state.route is not None:
            self._sent_load.end("decode", self._state.route.decode)

    def _usable(self, role: str) -> list[InstanceView]:
        """Instances of `role` that serve the model and are not known to be gone."""
        return self._avoided.not_gone(self._served.serving(role, self._model))

    async def _ask_all(
        self,
        best: BestRoute,
        ids: tuple[int, ...],
        hashes: tuple[bytes, ...],
        deadline: Deadline,
        asked: Callable[[], None],
        *,
        guest: bool,
    ) -> None:
        """Ask all workers at once; the first refusal ends the others.

        A refusal is an answer, so no task group: it would turn the first one into a cancel of this task.
        """
        route = best.decision
        messages = route_messages(
            route,
            self._request,
            self._state.log,
            self._state.told,
            self._gateway,
            ids,
            hashes,
            deadline,
            self._model.adapter,
            self._share,
            self._answer_scope,
            guest=guest,
            stay_ms=self._agent_sessions.stay_ms(self._meter.share.tenant, self._request.agent),
            lender=best.prefix.lender,
            thinking=self._thinking,
            expected_tokens=self.expected.most_tokens,
        )
        loads = self._record_sent(best, ids, hashes)
        asks = [
            start_task(
                self._ask_one(role, route.instance_of(role), message, deadline, loads[role]),
                name=f"ask-{route.instance_of(role)}",
            )
            for role, message in messages.items()
        ]
        asked()
        try:
            await asyncio.wait(asks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await cancel_until_done(*asks)
            for load in loads.values():
                if load.answered_s is None:
                    self._sent_load.drop(load)
        errors = _errors_of(asks)
        if errors:
            asks.clear()  # or what is raised would hold this frame, and this frame what is raised
            raise errors.pop(errors.index(_gravest(errors)))

    def _record_sent(
        self, best: BestRoute, ids: tuple[int, ...], hashes: tuple[bytes, ...]
    ) -> dict[str, Load]:
        """Note the load sent to each role: until heartbeats show it, others are not sent there as if nothing
        had been."""
        route = best.decision
        if route.prefill:
            self._sent_load.prefixes.add(route.prefill, hashes)
        blocks = {"decode": blocks_ahead(len(ids), self.expected.most_left, self._kv_groups)}
        tokens = {route.prompt_role: len(ids) - best.prefix.tokens}
        roles = [routed for routed in ROUTED_ROLES if route.instance_of(routed)]
        return {
            routed: self._sent_load.add(
                routed,
                route.instance_of(routed),
                tokens=tokens.get(routed, 0),
                blocks=blocks.get(routed, 0),
            )
            for routed in roles
        }

    async def _ask_one(
        self, role: str, instance: str, message: Message, deadline: Deadline, load: Load
    ) -> None:
        # Noted before it is sent: from then on the instance may hold something.
        self._state.hold_at(role, instance)
        asked_s = SYSTEM_CLOCK.monotonic_s()
        try:
            answer = await self._request_client.ask_instance(
                role, instance, message, deadline.shrink(self._config.ask_timeout_s), epoch=self._state.epoch
            )
        except NoAnswer as error:
            if deadline.expired():
                raise Refused(role, instance, error) from error
            self.trials.fail(role, error)
            late = Unavailable(f"{instance} did not answer in time: retry", hop=role)
            raise Refused(role, instance, late) from error
        except PenstockError as error:
            if not isinstance(error, Unavailable):
                self._state.let_go(role, instance)
            self.trials.fail(role, error)
            raise Refused(role, instance, error) from error
        if not isinstance(answer, Accepted):
            raise Refused(role, instance, unexpected_answer(answer, role))
        self._sent_load.took(load)
        if self._regions is not None:
            self._regions.record_answer(role, instance, SYSTEM_CLOCK.monotonic_s() - asked_s)
        route = self._state.route
        if route is not None and role == route.prompt_role:
            self._state.record_cached(answer.cached_tokens)
            self._meter.record_cached(answer.cached_tokens)

    def _avoid(self, refused: Refused) -> None:
        view = self._fleet.get(refused.role, refused.instance)
        if view is None:
            return
        if isinstance(refused.error, Unavailable):
            self._avoided.add_gone(view)
        elif isinstance(refused.error, Overloaded):
            self._avoided.add_refused(view, refused.error.retry_after_ms / 1000)
        else:
            self._avoided.add_failed(view)


def _errors_of(asks: Sequence[asyncio.Task[None]]) -> list[BaseException]:
    errors = (ask.exception() for ask in asks if not ask.cancelled())
    return [error for error in errors if error is not None]


def _gravest(errors: Sequence[BaseException]) -> BaseException:
    """Return the gravest error: an unexpected one first, then a final one, then one that time may help."""

    def rank(error: BaseException) -> tuple[bool, bool, bool]:
        if not isinstance(error, Refused):
            return False, False, False
        return True, not is_final(error.error), isinstance(error.error, Unavailable)

    return min(errors, key=rank)
