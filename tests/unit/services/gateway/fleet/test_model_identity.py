"""A name may stand for several models; a request is for one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.gateway.fleet.model_identity import MAX_NAMED, ModelIdentity, contends, find_model, with_adapter
from services.gateway.fleet.routing import serving
from shared.bus.fleet import InstanceView
from shared.errors import NotFound
from shared.messages import AdapterId, AdapterReport
from tests.support.heartbeats import make_heartbeat

OURS = ModelIdentity("m", "weights-a", "tokenizer-a")
OTHER_WEIGHTS = ModelIdentity("m", "weights-b", "tokenizer-a")
OTHER_TOKENIZER = ModelIdentity("m", "weights-c", "tokenizer-c")


SQL, SQL_NEWER, CHAT = AdapterId("sql", "d1"), AdapterId("sql", "d2"), AdapterId("chat", "d3")


def over(model: ModelIdentity, adapter: AdapterId) -> ModelIdentity:
    return replace(model, adapter=adapter)


def view(role: str, model: ModelIdentity, number: int = 0, *adapters: AdapterId) -> InstanceView:
    """An instance of `model` as it announces itself."""
    text = role in ("tokenizer", "detokenizer")
    beat = make_heartbeat(
        role,
        f"{role}-{number}",
        host="h",
        pid=1,
        model=model.name,
        capacity=8,
        kv_blocks=9,
        kv_blocks_free=9,
        weights_digest="" if text else model.weights,
        tokenizer_digest=model.tokenizer,
        adapters=tuple(AdapterReport(each.name, 1, each.digest, 8) for each in adapters),
    )
    return InstanceView(beat, 0.0)


class Views:
    def __init__(self, *views: InstanceView) -> None:
        self._views = views

    def __call__(self, role: str) -> list[InstanceView]:
        return [view for view in self._views if view.heartbeat.role == role]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_workers_of_the_name_with_other_weights_do_not_serve_it(role: str) -> None:
    ours, other = view(role, OURS), view(role, OTHER_WEIGHTS, 1)
    assert serving([ours, other], role, OURS) == [ours]


@pytest.mark.parametrize("role", ["tokenizer", "detokenizer"])
def test_text_services_serve_all_weights_of_their_tokenizer_and_no_other(role: str) -> None:
    ours, other = view(role, OURS), view(role, OTHER_TOKENIZER, 1)
    assert serving([ours, other], role, OURS) == serving([ours, other], role, OTHER_WEIGHTS) == [ours]


@pytest.mark.parametrize("role", ["speculator", "retriever"])
def test_a_speculator_or_retriever_serves_all(role: str) -> None:
    other = view(role, ModelIdentity("draft", "weights-d", "tokenizer-d"))
    assert serving([other], role, OURS) == [other]


def test_of_two_models_of_a_name_that_which_more_decode_workers_have_is_meant() -> None:
    views = [view("decode", OTHER_WEIGHTS, 1), view("decode", OURS, 2), view("decode", OURS, 3)]
    assert find_model("m", Views(*views)) == OURS
    assert find_model("", Views(*reversed(views))) == OURS


def test_a_model_that_lacks_a_role_is_not_meant_while_another_has_all() -> None:
    whole = [view(role, OURS) for role in ("tokenizer", "prefill", "decode", "detokenizer")]
    part = [view("decode", OTHER_WEIGHTS, number) for number in (1, 2)]
    assert find_model("m", Views(*part, *whole)) == OURS


def test_a_name_that_nobody_serves_is_not_found() -> None:
    with pytest.raises(NotFound, match="'x' is not served"):
        find_model("x", Views(view("decode", OURS)))


# ---- with an adapter ----


def test_a_model_and_an_adapter_are_named_together() -> None:
    found = find_model("m:sql", Views(view("decode", OURS, 0, SQL, CHAT)))
    assert (found, found.served_name, found.base) == (over(OURS, SQL), "m:sql", OURS)


def test_a_model_whose_own_name_has_a_colon_is_no_adapter() -> None:
    llama, eight = ModelIdentity("llama"), ModelIdentity("llama:8b")
    views = Views(view("decode", llama, 0, AdapterId("8b", "d")), view("decode", eight, 1, SQL))
    assert find_model("llama:8b", views) == eight
    assert find_model("llama:8b:sql", views) == over(eight, SQL)


@pytest.mark.parametrize("wanted", ["m:", ":sql", "x:sql"])
def test_a_name_that_is_no_model_and_adapter_is_not_found(wanted: str) -> None:
    with pytest.raises(NotFound, match="is not served: send one of m"):
        find_model(wanted, Views(view("decode", OURS, 0, SQL)))


def test_an_unknown_adapter_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(NotFound, match=r"'m' has no adapter 'x': send m or one of m:chat, m:sql$"):
        find_model("m:x", Views(view("decode", OURS, 0, SQL), view("decode", OURS, 1, CHAT)))
    with pytest.raises(NotFound, match="'m' has no adapter 'x': it has none now, send m"):
        find_model("m:x", Views(view("decode", OURS)))


def test_a_model_takes_an_adapter_that_its_workers_have() -> None:
    views = Views(view("prefill", OURS, 0, SQL), view("decode", OURS, 0, SQL, CHAT))
    assert with_adapter(OURS, "sql", views) == over(OURS, SQL)


@pytest.mark.parametrize(
    ("model", "adapter", "workers"),
    [
        pytest.param(
            OURS, "", [view(role, OURS, 0, SQL) for role in ("prefill", "decode")], id="none wanted"
        ),
        pytest.param(
            OURS, "sql", [view("prefill", OURS), view("decode", OURS, 0, SQL)], id="a role lacks it"
        ),
        pytest.param(
            OURS, "sql", [view(role, OTHER_WEIGHTS, 0, SQL) for role in ("prefill", "decode")], id="another's"
        ),
        pytest.param(
            over(OURS, CHAT),
            "sql",
            [view(role, OURS, 0, SQL, CHAT) for role in ("prefill", "decode")],
            id="asked for with one",
        ),
    ],
)
def test_otherwise_the_model_stays_as_it_is(
    model: ModelIdentity, adapter: str, workers: list[InstanceView]
) -> None:
    assert with_adapter(model, adapter, Views(*workers)) == model


@pytest.mark.parametrize(("count", "more"), [(MAX_NAMED, ""), (MAX_NAMED + 1, ", …")])
def test_an_error_lists_so_many_adapters_and_no_more(count: int, more: str) -> None:
    adapters = [AdapterId(f"a{number:02}", "d") for number in range(count)]
    with pytest.raises(NotFound, match=f", m:a{MAX_NAMED - 1}{more}$"):
        find_model("m:x", Views(view("decode", OURS, 0, *adapters)))


def private(*tenants: str, number: int = 0, adapter: AdapterId = SQL) -> InstanceView:
    """A decode worker with an adapter that is for these tenants alone, and one for everybody."""
    reports = (
        AdapterReport(adapter.name, 1, adapter.digest, 8, "", tenants),
        AdapterReport("chat", 1, "d", 8),
    )
    shown = view("decode", OURS, number)
    worker = replace(shown.heartbeat.worker, adapters=reports)
    return InstanceView(replace(shown.heartbeat, worker=worker), 0.0)


def test_an_adapter_is_found_by_its_tenants_and_by_nobody_else() -> None:
    views = Views(private("acme", "third"))
    assert find_model("m:sql", views, "acme") == find_model("m:sql", views, "third") == over(OURS, SQL)
    for tenant in ("rival", "", "acm"):
        told = []
        for wanted in ("sql", "nosql"):
            with pytest.raises(NotFound) as refused:
                find_model(f"m:{wanted}", views, tenant)
            told.append(refused.value.message.replace("nosql", "sql"))
        assert told[0] == told[1] == "model 'm' has no adapter 'sql': send m or one of m:chat"


def test_an_adapter_is_hidden_as_soon_as_one_worker_says_so() -> None:
    views = Views(private(), private("acme", number=1, adapter=SQL_NEWER))
    assert find_model("m:sql", views, "acme").adapter.name == "sql"
    with pytest.raises(NotFound):
        find_model("m:sql", views, "rival")


def test_passages_of_another_tenant_are_answered_from_without_the_adapter() -> None:
    prefill = view("prefill", OURS, 0, SQL)
    views = Views(private("acme"), prefill)
    assert with_adapter(OURS, "sql", views, "acme") == over(OURS, SQL)
    assert with_adapter(OURS, "sql", views, "rival") == OURS


def test_an_adapter_that_could_not_be_loaded_is_none() -> None:
    with pytest.raises(NotFound, match="has no adapter 'sql'"):
        find_model("m:sql", Views(view("decode", OURS, 0, AdapterId("sql", ""))))


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_workers_without_the_adapter_or_with_another_version_of_it_do_not_serve_it(role: str) -> None:
    views = [view(role, OURS, 0, SQL), view(role, OURS, 1, SQL_NEWER), view(role, OURS, 2)]
    assert serving(views, role, over(OURS, SQL)) == views[:1]
    assert serving(views, role, OURS) == views


@pytest.mark.parametrize("role", ["tokenizer", "detokenizer"])
def test_text_services_need_no_adapter(role: str) -> None:
    assert serving([view(role, OURS)], role, over(OURS, SQL))


def test_the_version_of_an_adapter_that_both_kinds_of_workers_have_is_meant() -> None:
    views = [view("decode", OURS, 0, SQL_NEWER), view("decode", OURS, 1, SQL_NEWER)]
    views += [view("decode", OURS, 2, SQL), view("prefill", OURS, 0, SQL)]
    assert find_model("m:sql", Views(*views)) == over(OURS, SQL)


def test_an_adapter_decides_which_of_two_models_of_a_name_is_meant() -> None:
    views = [view("decode", OTHER_WEIGHTS, number) for number in range(3)]
    assert find_model("m:sql", Views(*views, view("decode", OURS, 3, SQL))) == over(OURS, SQL)


def test_requests_contend_where_all_that_the_later_may_use_is_what_the_earlier_may_use() -> None:
    everywhere = [view("decode", OURS, 0, SQL, CHAT), view("decode", OURS, 1, SQL)]
    assert contends(OURS, over(OURS, SQL), everywhere)
    assert contends(over(OURS, SQL), OURS, everywhere)
    assert contends(over(OURS, SQL), over(OURS, CHAT), everywhere)
    assert not contends(over(OURS, CHAT), OURS, everywhere)
    assert not contends(over(OURS, CHAT), over(OURS, SQL), everywhere)
    assert not contends(OURS, OTHER_WEIGHTS, everywhere)
