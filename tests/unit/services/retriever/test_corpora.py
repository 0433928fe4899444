"""Which corpus a tenant searches, and what others learn of it."""

from __future__ import annotations

import numpy as np
import pytest

from services.retriever.corpora import Corpora
from services.retriever.served_corpus import ServedCorpus
from shared.config.named_corpus import NamedCorpus
from shared.errors import InvalidRequest, NotFound
from shared.messages import MAX_REPORTED_CHARS, CorpusReport
from shared.retrieval.index.passage_index import PassageIndex
from tests.support import metric


def served(name: str, *tenants: str, generation: int = 1) -> ServedCorpus:
    corpus = ServedCorpus(NamedCorpus(name, f"/{name}", tenants))
    if generation:
        corpus.replace_index(PassageIndex((), np.zeros((0, 8), np.float32)), generation)
    return corpus


CORPORA = Corpora([served("open"), served("acme-a", "acme"), served("both", "acme", "rival")])


@pytest.mark.parametrize(
    ("name", "tenant", "found"),
    [
        ("open", "", "open"),
        ("open", "rival", "open"),
        ("acme-a", "acme", "acme-a"),
        ("both", "rival", "both"),
    ],
)
def test_a_corpus_is_found_by_its_name(name: str, tenant: str, found: str) -> None:
    corpus = CORPORA.find(name, tenant)
    assert corpus is not None
    assert corpus.named.name == found


@pytest.mark.parametrize("tenant", ["rival", "", "Acme"])
def test_another_tenant_s_corpus_and_one_that_is_not_there_answer_alike(tenant: str) -> None:
    said = []
    for name in ("acme-a", "nobody"):
        with pytest.raises(NotFound) as caught:
            CORPORA.find(name, tenant)
        said.append(caught.value.message.replace(name, "…"))
    assert said[0] == said[1]
    assert "acme" not in said[0]


def test_without_a_name_it_is_the_only_one() -> None:
    corpus = CORPORA.find("", "")
    assert corpus is not None
    assert corpus.named.name == "open"
    with pytest.raises(InvalidRequest, match="name one of open, both as the `corpus`"):
        CORPORA.find("", "rival")
    assert Corpora([served("a", "acme")]).find("", "rival") is None


def test_who_may_search_none_is_told_so_whatever_the_name() -> None:
    with pytest.raises(NotFound, match="there is no corpus 'a': there is none that you may search"):
        Corpora([served("a", "acme")]).find("a", "rival")


def test_states_differ_between_corpora_and_between_their_indexes() -> None:
    first, second = served("a"), served("b", "acme")
    corpora = Corpora([first, second, served("c", generation=0)])
    assert corpora.states() == {"a/1", "b/1", ""}
    assert (corpora.state_of("b", "acme"), corpora.state_of("b", ""), corpora.state_of("c", "")) == (
        "b/1",
        "",
        "",
    )
    first.replace_index(PassageIndex((), np.zeros((0, 8), np.float32)), 2)
    assert corpora.states() == {"a/2", "b/1", ""}


def test_trouble_is_reported_cut_to_its_limit_and_counted() -> None:
    corpus = served("gauged", generation=3)
    assert corpus.report == CorpusReport("gauged", 0, 3, "")
    corpus.report_trouble("x" * (MAX_REPORTED_CHARS + 1))
    assert corpus.report == CorpusReport("gauged", 0, 3, "x" * MAX_REPORTED_CHARS)
    assert metric.value("penstock_corpus_troubled", corpus="gauged") == 1
    corpus.report_trouble("")
    assert metric.value("penstock_corpus_troubled", corpus="gauged") == 0
