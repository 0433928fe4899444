"""Late interaction on the real encoder: what scores are, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from shared.retrieval.encoders.embedder import MAX_TOKENS, Embedder, TextStates
from shared.retrieval.encoders.late_interaction import WEIGHT, KeptStates, LateInteraction

QUESTION = "Which port does the gate listen on?"
TEXTS = ("The gate listens on port 50051.", "Carrots are cooked in soup.", "A gate of iron.")
ROOM_BYTES = 32 << 20


class CountingEmbedder(Embedder):
    """Notes the texts whose states are computed."""

    computed: list[str]

    def passage_states(self, texts: Sequence[str], *, threads: int) -> list[TextStates]:
        self.computed += texts
        return super().passage_states(texts, threads=threads)


@pytest.fixture(scope="module")
def loaded() -> CountingEmbedder:
    torch.set_num_threads(1)
    embedder = CountingEmbedder.load()
    assert isinstance(embedder, CountingEmbedder)
    return embedder


@pytest.fixture
def embedder(loaded: CountingEmbedder) -> CountingEmbedder:
    loaded.computed = []
    return loaded


def test_a_score_is_the_mean_of_the_question_tokens_largest_cosines(embedder: CountingEmbedder) -> None:
    found = LateInteraction(embedder, max_bytes=ROOM_BYTES).score_texts(QUESTION, TEXTS)
    asked, _ = embedder.question_states(QUESTION)
    texts = embedder.passage_states(TEXTS, threads=1)
    exact = [float((asked.states @ text.states.T).max(axis=1).mean()) for text in texts]
    assert found.scores == pytest.approx(exact, abs=0.01)  # states are kept in 8 bits
    assert found.scores[0] == max(found.scores)
    assert found.tokens == [asked.read + text.read for text in texts]
    assert found.truncated == [False] * len(TEXTS)


def test_special_tokens_have_no_say(embedder: CountingEmbedder) -> None:
    (text,) = embedder.passage_states(["iron"], threads=1)
    assert (len(text.states), text.read) == (1, 3)


def test_a_texts_score_does_not_depend_on_those_beside_it(embedder: CountingEmbedder) -> None:
    together = LateInteraction(embedder, max_bytes=ROOM_BYTES).score_texts(QUESTION, TEXTS).scores
    alone = [LateInteraction(embedder, max_bytes=0).score_texts(QUESTION, [text]).scores[0] for text in TEXTS]
    assert together == pytest.approx(alone, abs=1e-3)


def test_a_text_without_tokens_scores_0_beside_others(embedder: CountingEmbedder) -> None:
    scores = LateInteraction(embedder, max_bytes=ROOM_BYTES).score_texts(QUESTION, ("", TEXTS[0])).scores
    assert scores[0] == 0.0 < scores[1]


def test_what_is_longer_than_the_encoder_reads_is_scored_by_its_beginning(embedder: CountingEmbedder) -> None:
    found = LateInteraction(embedder, max_bytes=ROOM_BYTES).score_texts(QUESTION, ["gate " * 300, "gate"])
    assert found.truncated == [True, False]
    assert found.tokens[0] > MAX_TOKENS
    assert all(LateInteraction(embedder, max_bytes=0).score_texts("gate " * 300, TEXTS).truncated)


def test_texts_of_one_owner_push_out_none_of_another_s_share(embedder: CountingEmbedder) -> None:
    (states,) = embedder.passage_states([TEXTS[0]], threads=1)
    reranker = LateInteraction(embedder, max_bytes=6 * KeptStates.of(states).kept_bytes)
    reranker.score_texts(QUESTION, TEXTS[:1], "corpus handbook")
    for number in range(40):
        reranker.score_texts(QUESTION, [f"The gate listens on port {number}."], "tenant loud")
    embedder.computed = []
    reranker.score_texts(QUESTION, TEXTS[:1], "corpus handbook")
    assert embedder.computed == []


def test_what_another_owner_has_asked_about_is_computed_anew(embedder: CountingEmbedder) -> None:
    reranker = LateInteraction(embedder, max_bytes=ROOM_BYTES)
    for owner in ("corpus handbook", "tenant rival", "tenant rival"):
        reranker.score_texts(QUESTION, TEXTS[:1], owner)
    assert embedder.computed == [TEXTS[0]] * 2


def test_texts_that_are_asked_about_again_are_not_computed_again(embedder: CountingEmbedder) -> None:
    reranker = LateInteraction(embedder, max_bytes=ROOM_BYTES)
    first = reranker.score_texts(QUESTION, TEXTS)
    assert reranker.score_texts(QUESTION, (*TEXTS, TEXTS[0])).scores == [*first.scores, first.scores[0]]
    assert embedder.computed == list(TEXTS)


def test_states_asked_for_least_lately_go_when_there_is_no_room(embedder: CountingEmbedder) -> None:
    kept = [KeptStates.of(text).kept_bytes for text in embedder.passage_states(TEXTS, threads=1)]
    embedder.computed = []
    reranker = LateInteraction(embedder, max_bytes=sum(kept) - 1)
    for text in (TEXTS[0], TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[0], TEXTS[1]):
        reranker.score_texts(QUESTION, [text])
    assert embedder.computed == [*TEXTS, TEXTS[1]]


def test_without_room_nothing_is_kept(embedder: CountingEmbedder) -> None:
    reranker = LateInteraction(embedder, max_bytes=0)
    for _ in range(2):
        reranker.score_texts(QUESTION, TEXTS[:1])
    assert embedder.computed == [TEXTS[0]] * 2


def test_of_a_question_in_a_language_that_the_encoder_does_not_know_it_says_nothing(
    embedder: CountingEmbedder,
) -> None:
    reranker = LateInteraction(embedder, max_bytes=ROOM_BYTES)
    assert reranker.weight(QUESTION) == pytest.approx(WEIGHT) == pytest.approx(0.36)
    assert reranker.weight("网关监听哪个端口") == 0.0


def test_states_in_8_bits_are_nearly_what_they_were() -> None:
    states = np.random.default_rng(0).normal(size=(5, 384)).astype(np.float32)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    kept = KeptStates.of(TextStates(states, 7, truncated=False))
    assert np.abs(kept.steps * kept.scales[:, None] - states).max() <= kept.scales.max() / 2 + 1e-6
    assert kept.kept_bytes >= kept.steps.nbytes + kept.scales.nbytes
