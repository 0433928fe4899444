"""The best route now: without the shunned, with the load that is under way, on the shorter path."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.gateway.fleet.best_route import BestRoute, best_route
from services.gateway.fleet.known_prefixes import KnownPrefix
from services.gateway.fleet.routing import Need
from services.gateway.fleet.sent_load import SentLoad
from shared.bus.fleet import InstanceView
from shared.errors import Unavailable
from tests.integration.gateway_peers import heartbeat
from tests.support.block_hashes import numbered_hashes

NEED = Need((), tokens=32, output_tokens=16)


def view(role: str, number: int, **fields: object) -> InstanceView:
    return InstanceView(heartbeat(role, f"{role}-{number}", **fields), last_seen_s=0.0)


def routed(**roles: Sequence[InstanceView]) -> dict[str, Sequence[InstanceView]]:
    alone = {role: [view(role, 0)] for role in ("prefill", "decode", "detokenizer")}
    return {**alone, **roles}


def best(
    fleet: dict[str, Sequence[InstanceView]],
    *shunned: set[tuple[str, str]],
    need: Need = NEED,
    sent_load: SentLoad | None = None,
    most_local_tokens: int = 0,
    speculators: Sequence[InstanceView] = (),
) -> BestRoute:
    return best_route(
        fleet,
        speculators,
        need,
        *shunned,
        sent_load=sent_load or SentLoad(),
        most_local_tokens=most_local_tokens,
        rotation=0,
    )


def test_a_shunned_instance_is_left_out_while_there_is_another() -> None:
    both = routed(decode=[view("decode", 0), view("decode", 1, live=7)])
    shunned = {("decode", "decode-0")}
    assert best(both, shunned).decision.decode == "decode-1"
    assert best(routed(), shunned).decision.decode == "decode-0"


def test_what_is_under_way_to_an_instance_counts_before_its_heartbeat_says_so() -> None:
    both, sent = routed(prefill=[view("prefill", 0), view("prefill", 1)]), SentLoad()
    assert best(both, sent_load=sent).decision.prefill == "prefill-0"
    sent.add("prefill", "prefill-0", tokens=4000)
    assert best(both, sent_load=sent).decision.prefill == "prefill-1"


def test_the_worker_of_the_prompt_is_the_prefill_worker_or_the_decode_worker_on_the_shorter_path() -> None:
    far, near = best(routed()), best(routed(), most_local_tokens=64)
    assert (far.decision.prefill, far.prompt_worker.heartbeat.role) == ("prefill-0", "prefill")
    assert (near.decision.prefill, near.prompt_worker.heartbeat.role) == ("", "decode")


def test_a_speculator_is_chosen_where_there_is_one() -> None:
    assert best(routed(), speculators=[view("speculator", 0)]).decision.speculator == "speculator-0"
    assert best(routed()).decision.speculator == ""


@pytest.mark.parametrize(
    ("failing", "refused", "lender"),
    [
        (set(), set(), "prefill-1"),
        (set(), {("prefill", "prefill-1")}, "prefill-1"),
        ({("prefill", "prefill-1")}, set(), ""),
    ],
    ids=["fine", "full", "failing"],
)
def test_who_has_more_of_the_prompt_is_named_although_it_is_full_unless_it_fails(
    failing: set[tuple[str, str]], refused: set[tuple[str, str]], lender: str
) -> None:
    names = tuple(numbered_hashes(range(20)))
    rich = view("prefill", 1, queued_tokens=5000)
    rich.prefix.update(names)
    fleet = routed(prefill=[view("prefill", 0), rich])
    chosen = best(fleet, failing, refused, need=Need(names, 16 * 20 + 1, 9))
    assert (chosen.decision.prefill, chosen.prefix.lender.instance) == ("prefill-0", lender)


def test_on_the_shorter_path_the_prefix_is_what_the_decode_worker_has() -> None:
    names = tuple(numbered_hashes(range(4)))
    decode = view("decode", 0)
    decode.prefix.update(names[:3])
    near = best(routed(decode=[decode]), need=Need(names, 65, 9), most_local_tokens=64)
    assert (near.decision.prefill, near.prefix) == ("", KnownPrefix(3))


def test_a_role_without_an_instance_is_named() -> None:
    with pytest.raises(Unavailable, match="no detokenizer instance is ready"):
        best(routed(detokenizer=[]))


def test_workers_of_different_layouts_make_no_route() -> None:
    with pytest.raises(Unavailable, match="same KV layout"):
        best(routed(prefill=[view("prefill", 0, layout="a")], decode=[view("decode", 0, layout="b")]))
