"""RoutingDecision and admission: pure choices from heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from services.gateway.fleet.known_prefixes import KnownPrefixes
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import (
    Candidate,
    Need,
    RoutingDecision,
    choose_route,
    free_slots,
    kv_groups,
    leave_out,
    leave_out_of_all,
    missing_role,
    tokens_before,
)
from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.errors import Unavailable
from shared.messages import DUE_EDGES_S, Heartbeat
from tests.support.block_hashes import numbered_hashes
from tests.support.heartbeats import make_heartbeat

HASHES = tuple(numbered_hashes([11, 12, 13, 14]))
NEED = Need(HASHES, tokens=64, output_tokens=16)
WINDOWED = KvGroups(0, 1, 1024)


@dataclass(frozen=True, slots=True)
class View:
    heartbeat: Heartbeat
    cached: int = 0

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        return min(self.cached, len(block_hashes))


def beat(
    role: str,
    instance: str,
    *,
    live: int = 0,
    queued_tokens: int = 0,
    tokens_per_s: float = 0.0,
    free: int = 100,
    layout: str = "",
    groups: KvGroups = ONE_GROUP,
    guests: int = 0,
) -> Heartbeat:
    return make_heartbeat(
        role,
        instance,
        host="h",
        pid=1,
        model="m",
        layout=layout,
        capacity=8,
        live=live,
        queued_tokens=queued_tokens,
        kv_blocks=100,
        kv_blocks_free=free,
        tokens_per_s=tokens_per_s,
        kv_groups=groups,
        guests=guests,
    )


def fleet(**roles: Sequence[View]) -> dict[str, Sequence[Candidate]]:
    views: dict[str, Sequence[Candidate]] = {
        role: [View(beat(role, f"{role}-0"))] for role in ("decode", "prefill", "detokenizer")
    }
    return {**views, **roles}


def chosen(views: Mapping[str, Sequence[Candidate]], need: Need, *, rotation: int = 0) -> RoutingDecision:
    """Return the route where all prefill workers may lend, and none fetches."""
    known = KnownPrefixes(views.get("prefill", ()), need)
    return choose_route(views, need, known.cost, rotation=rotation)


@pytest.mark.parametrize(
    ("live", "views", "taken"),
    [
        (0, ("own", "other"), "own"),
        (7, ("own", "other"), "own"),
        (8, ("own", "other"), "other"),
        (8, ("own",), "own"),
        (0, ("other",), "other"),
    ],
    ids=["idle", "one place left", "full", "full and alone", "gone"],
)
def test_the_detokenizer_of_the_own_process_comes_first_while_it_has_room(
    live: int, views: tuple[str, ...], taken: str
) -> None:
    busy = {"own": live, "other": 0}
    detokenizers = [View(beat("detokenizer", name, live=busy[name])) for name in views]
    seen = fleet(detokenizer=detokenizers)
    known = KnownPrefixes(seen["prefill"], NEED)
    assert choose_route(seen, NEED, known.cost, own_detokenizer="own").detokenizer == taken


def test_one_instance_of_each_role_is_chosen_and_no_speculator_is_none() -> None:
    assert chosen(fleet(), NEED) == RoutingDecision("decode-0", "prefill-0", "detokenizer-0", "")


@pytest.mark.parametrize("role", ["decode", "prefill", "detokenizer"])
def test_a_missing_role_is_named(role: str) -> None:
    views = fleet(**{role: []})
    assert missing_role(views) == role
    with pytest.raises(Unavailable) as caught:
        chosen(views, NEED)
    assert caught.value.hop == role


def test_what_is_shunned_is_left_out_where_another_is_there() -> None:
    views = [View(beat("decode", "a")), View(beat("decode", "b", live=7))]
    assert leave_out(views, {("decode", "a")}) == views[1:]
    assert leave_out(views, {("prefill", "a")}) == views


def test_where_all_are_shunned_they_are_used_anyway_and_what_matters_least_is_given_up_first() -> None:
    views = [View(beat("decode", "a")), View(beat("decode", "b"))]
    broken, full = {("decode", "a")}, {("decode", "b")}
    assert leave_out(views, broken, full) == views[1:]
    assert leave_out(views, full, broken) == views[:1]
    assert leave_out(views, broken | full, set()) == views


def test_what_is_shunned_is_used_where_no_other_pair_of_workers_has_one_kv_layout() -> None:
    views = {
        "decode": [View(beat("decode", "a", layout="one")), View(beat("decode", "b", layout="two"))],
        "prefill": [View(beat("prefill", "a", layout="one"))],
    }
    assert leave_out_of_all(views, {("decode", "b")})["decode"] == views["decode"][:1]
    assert leave_out_of_all(views, {("decode", "a")}) == views


def test_a_worker_that_keeps_the_window_alone_has_room_where_one_that_keeps_all_has_none() -> None:
    long = Need((), tokens=4096, output_tokens=16)
    views = fleet(decode=[View(beat("decode", "all")), View(beat("decode", "windowed", groups=WINDOWED))])
    assert chosen(views, long).decode == "windowed"


def test_blocks_before_the_window_save_no_room() -> None:
    """All but 2 of 256 blocks are known there, 65 of them in the window: what is left does not fit."""
    need = Need(tuple(numbered_hashes(range(256))), tokens=4096, output_tokens=16)
    tight = beat("decode", "a", free=1, live=0, groups=WINDOWED)
    roomy = beat("decode", "b", free=100, live=7, groups=WINDOWED)
    views = fleet(decode=[View(tight, cached=254), View(roomy)])
    assert chosen(views, need).decode == "b"


def test_a_worker_has_room_for_what_layers_with_a_window_keep_beside_the_others() -> None:
    """4,096 tokens and those to come take 257 blocks of the first kind and 4 times 68 of the second."""
    long = Need((), tokens=4096, output_tokens=16)
    mixed = KvGroups(1, 4, 1024)
    tight = View(beat("decode", "a", free=257 + 4 * 68 - 1, live=0, groups=mixed))
    roomy = View(beat("decode", "b", free=257 + 4 * 68, live=7, groups=mixed))
    assert chosen(fleet(decode=[tight, roomy]), long).decode == "b"


def test_the_groups_of_a_model_are_those_of_all_its_decode_workers() -> None:
    windowed, whole = (View(beat("decode", "a", groups=groups)) for groups in (WINDOWED, ONE_GROUP))
    assert kv_groups([windowed, windowed], ModelIdentity("m")) == WINDOWED
    assert kv_groups([windowed, whole], ModelIdentity("m")) == ONE_GROUP
    assert kv_groups([], ModelIdentity("m")) == ONE_GROUP


def test_equal_instances_take_turns() -> None:
    views = fleet(decode=[View(beat("decode", name)) for name in "cab"])
    decodes = [chosen(views, NEED, rotation=turn).decode for turn in range(6)]
    assert decodes == ["a", "b", "c", "a", "b", "c"]


def test_the_same_view_and_turn_give_the_same_choice() -> None:
    views = fleet(decode=[View(beat("decode", name)) for name in "ab"])
    assert chosen(views, NEED, rotation=5) == chosen(views, NEED, rotation=5)


def test_decode_prefers_the_one_that_has_the_prefix() -> None:
    views = fleet(decode=[View(beat("decode", "a")), View(beat("decode", "b"), cached=4)])
    assert chosen(views, NEED).decode == "b"


def test_a_much_busier_decode_loses_although_it_has_the_prefix() -> None:
    views = fleet(decode=[View(beat("decode", "a")), View(beat("decode", "b", live=6), cached=4)])
    assert chosen(views, NEED).decode == "a"


def test_decode_needs_room_for_all_blocks_that_it_does_not_have() -> None:
    roomy, tight = View(beat("decode", "roomy", live=7, free=5)), View(beat("decode", "tight", free=4))
    assert chosen(fleet(decode=[tight, roomy]), NEED).decode == "roomy"


def test_decode_needs_no_room_for_all_that_an_answer_may_become() -> None:
    long = Need(HASHES, tokens=64, output_tokens=1000)
    few = View(beat("decode", "few", live=1, free=12))  # 64 tokens and 128
    fewer = View(beat("decode", "fewer", free=11))
    assert chosen(fleet(decode=[fewer, few]), long).decode == "few"


def test_a_full_decode_is_the_last_choice_but_a_choice() -> None:
    full = View(beat("decode", "a", live=8))
    assert chosen(fleet(decode=[full, View(beat("decode", "b", live=7))]), NEED).decode == "b"
    assert chosen(fleet(decode=[full]), NEED).decode == "a"


def test_of_full_decodes_one_that_takes_guests_comes_first() -> None:
    crowded = View(beat("decode", "a", live=9, guests=1), cached=4)
    roomy = View(beat("decode", "b", live=11, guests=4))
    assert chosen(fleet(decode=[crowded, roomy]), NEED).decode == "b"


def test_places_for_guests_are_counted_beside_the_slots_and_only_where_asked_for() -> None:
    model = ModelIdentity.of(beat("decode", "a"))
    views = [View(beat("decode", "a", live=7, guests=4)), View(beat("decode", "b", live=10, guests=4))]
    assert free_slots(views, model, 1) == 1
    assert free_slots(views, model, 1, with_guests=True) == 5 + 2
    assert free_slots(views, model, 50, with_guests=True) == 2 + 2  # as KV blocks are left
    assert free_slots(views, model, 101, with_guests=True) is None


def test_prefill_goes_where_the_first_token_comes_soonest() -> None:
    slow = View(beat("prefill", "slow", queued_tokens=0, tokens_per_s=100.0))
    queued = View(beat("prefill", "queued", queued_tokens=300, tokens_per_s=1000.0))
    cached = View(beat("prefill", "cached", queued_tokens=300, tokens_per_s=1000.0), cached=4)
    assert chosen(fleet(prefill=[slow, queued]), NEED).prefill == "queued"
    assert chosen(fleet(prefill=[slow, queued, cached]), NEED).prefill == "cached"


@pytest.mark.parametrize("tokens_per_s", [0.0, 1000.0], ids=["unmeasured", "measured"])
def test_of_two_prefills_of_the_same_rate_the_idle_one_beats_the_one_with_a_queue(
    tokens_per_s: float,
) -> None:
    queued = View(beat("prefill", "a-queued", queued_tokens=300, tokens_per_s=tokens_per_s))
    idle = View(beat("prefill", "b-idle", tokens_per_s=tokens_per_s))
    for turn in range(2):
        assert chosen(fleet(prefill=[queued, idle]), NEED, rotation=turn).prefill == "b-idle"


def test_a_speculator_is_taken_by_load() -> None:
    views = fleet(speculator=[View(beat("speculator", "a", live=2)), View(beat("speculator", "b"))])
    assert chosen(views, NEED).speculator == "b"


def test_a_prompt_without_a_full_block_can_be_placed() -> None:
    assert chosen(fleet(), Need((), tokens=1, output_tokens=1)).decode == "decode-0"


def test_a_placement_knows_who_it_uses_in_which_role() -> None:
    route = RoutingDecision("x", "y", "z", "")
    assert route.uses("decode", "x")
    assert not route.uses("prefill", "x")
    assert not route.uses("tokenizer", "x")


def test_workers_with_different_kv_layouts_are_never_placed_together() -> None:
    fleet = {
        "decode": [
            View(beat("decode", "d0", layout="int8")),
            View(beat("decode", "d1", live=7, layout="bf16")),
        ],
        "prefill": [View(beat("prefill", "p0", layout="bf16")), View(beat("prefill", "p1", layout="fp8"))],
        "detokenizer": [View(beat("detokenizer", "t0"))],
    }
    route = chosen(fleet, NEED)
    assert (route.decode, route.prefill) == ("d1", "p0")


def test_no_common_kv_layout_is_a_sentence() -> None:
    fleet = {
        "decode": [View(beat("decode", "d0", layout="int8"))],
        "prefill": [View(beat("prefill", "p0", layout="bf16"))],
        "detokenizer": [View(beat("detokenizer", "t0"))],
    }
    with pytest.raises(Unavailable, match="same KV layout"):
        chosen(fleet, NEED)


@pytest.mark.parametrize(
    ("left_s", "before"),
    [(0.0, 10), (DUE_EDGES_S[0], 10), (DUE_EDGES_S[0] + 0.001, 20), (DUE_EDGES_S[1] + 0.001, 90), (1e9, 90)],
)
def test_what_is_due_later_is_computed_behind_a_prompt(left_s: float, before: int) -> None:
    worker = make_heartbeat("prefill", "p", queued_tokens=90, due_tokens=(10, 20)).worker
    assert tokens_before(worker, 0, left_s) == before


def test_no_worker_has_more_before_a_prompt_than_it_has_at_all() -> None:
    told = make_heartbeat("prefill", "p", queued_tokens=90, due_tokens=(1000,)).worker
    silent = make_heartbeat("prefill", "p", queued_tokens=90).worker
    assert (tokens_before(told, 0, 0.0), tokens_before(silent, 0, 0.0)) == (90, 90)


def test_shorter_prompts_have_as_many_tokens_before_a_prompt_as_it_has() -> None:
    worker = make_heartbeat("prefill", "p", queued_tokens=90, due_tokens=(10, 20)).worker
    assert [tokens_before(worker, tokens, 0.0) for tokens in (0, 5, 80, 81)] == [10, 15, 90, 90]


def test_the_worker_is_the_soonest_that_has_least_due_before_the_prompt() -> None:
    late = View(make_heartbeat("prefill", "p-late", queued_tokens=900, due_tokens=(0,)))
    soon = View(make_heartbeat("prefill", "p-soon", queued_tokens=300, due_tokens=(300,)))
    for left_s, chosen in ((0.1, late), (60.0, soon)):
        known = KnownPrefixes([late, soon], replace(NEED, left_s=left_s))
        assert min((late, soon), key=known.cost) is chosen
