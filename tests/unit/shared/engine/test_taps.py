"""The residual stream after some layers, as transformers has it, and logits that are the same beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.engine import LLM, SamplingParams
from shared.engine.batch import Batch, Model, Span, Taps
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.engine import BACKENDS, FAMILIES, make_engine, oracle, prompts, tables_in

LAYERS = (0, 1, 2)
HIDDEN = 48


def forward(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and what `batch` taps, which held no numbers before."""
    assert batch.taps is not None
    batch.taps.room(40).fill_(torch.nan)
    logits = model.forward(batch).clone()
    return logits, batch.taps.room(len(batch.logit_rows)).clone()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "cohere2", "glm4 moe"])
@torch.inference_mode()
def test_taps_are_the_hidden_states_of_transformers(name: str, backend: str, tmp_path: Path) -> None:
    folder = FAMILIES[name](tmp_path)
    engine, (prompt,) = make_engine(folder, backend=backend), prompts(1, 97, longest=30)
    found = oracle(folder)(torch.tensor([prompt]), output_hidden_states=True)
    before = torch.stack([found.hidden_states[layer + 1][0] for layer in LAYERS[:2]], 1)
    tables = tables_in(engine.kv_pool, range(4))
    batch = Batch(prompt, [Span(0, len(prompt), tables)], range(len(prompt)), taps=Taps(LAYERS, HIDDEN))
    _, taps = forward(engine._model, batch)
    assert (taps[:, :2] - before).abs().max() <= 1e-4
    assert not taps.isnan().any()
    # What comes after the last layer is known by the logits that it makes.
    torch_taps = Taps(LAYERS, HIDDEN)
    make_engine(folder, backend="torch")._model.forward(
        Batch(prompt, [Span(0, len(prompt), tables)], range(len(prompt)), taps=torch_taps)
    )
    assert (taps - torch_taps.rows).abs().max() <= 1e-4


@pytest.mark.skipif("native" not in BACKENDS, reason="the kernels were not built, or cannot run here")
@pytest.mark.parametrize("threads", [1, 2])
def test_invariant_5_a_row_has_the_same_taps_among_others_and_the_logits_that_it_has_without(
    threads: int, tmp_path: Path
) -> None:
    engine = make_engine(FAMILIES["gemma2"](tmp_path), backend="native", threads=threads)
    model, ids = engine._model, [(31 * place + 5) % 97 for place in range(40)]
    own, other = tables_in(engine.kv_pool, range(0, 8, 2)), tables_in(engine.kv_pool, range(1, 8, 2))
    taps = Taps(LAYERS[:2], HIDDEN)
    logits, whole = forward(model, Batch(ids, [Span(0, 40, own)], range(40), taps=taps))
    assert torch.equal(model.forward(Batch(ids, [Span(0, 40, own)], range(40))), logits)
    beside = Batch(
        [*ids[:7], *ids[30:33]],
        [Span(0, 7, other), Span(30, 3, own)],
        [6, 7, 9],
        taps=taps,
    )
    some_logits, some = forward(model, beside)
    assert torch.equal(some, whole[[6, 30, 32]])
    assert torch.equal(some_logits, logits[[6, 30, 32]])
    _, alone = forward(model, Batch(ids[39:], [Span(39, 1, own)], [0], taps=taps))
    assert torch.equal(alone, whole[39:])


@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_completions_carry_the_states_that_their_tokens_were_drawn_from(backend: str, tmp_path: Path) -> None:
    """More prompts than have room at once come in chunks, and some of them are computed again."""
    folder = FAMILIES["llama"](tmp_path)
    llm = LLM(folder, threads=1, backend=backend, max_sequences=3, kv_blocks=10, max_batch_tokens=24)
    params = [
        SamplingParams(temperature=float(n % 2), seed=n, max_tokens=9 + n, ignore_eos=True) for n in range(5)
    ]
    asked = prompts(5, 97, longest=40)
    found = llm.generate(asked, params, tap_layers=LAYERS[:2])
    assert [answer.token_ids for answer in found] == [
        answer.token_ids for answer in llm.generate(asked, params)
    ]
    for prompt, answer in zip(asked, found, strict=True):
        text = [*prompt, *answer.token_ids]
        states = oracle(folder)(torch.tensor([text]), output_hidden_states=True).hidden_states
        expected = torch.stack([states[layer + 1][0, len(prompt) - 1 : -1] for layer in LAYERS[:2]], 1)
        assert answer.taps is not None
        torch.testing.assert_close(answer.taps.float(), expected, rtol=2e-2, atol=2e-2)


def test_layers_are_tapped_only_where_rows_are_drawn_in_their_order(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    llm = LLM(folder, threads=1)
    for params in (SamplingParams(grammar=Grammar("regex", "a*")), SamplingParams(prompt_logprobs=0)):
        with pytest.raises(InvalidRequest, match="layers are tapped where there are neither grammars nor"):
            llm.generate([[1, 2]], params, tap_layers=(0,))
    for layers in ((1, 0), (0, 0), (-1,), (99,)):
        with pytest.raises(InvalidRequest, match="cannot be tapped; name some of 0 to "):
            llm.generate([[1, 2]], tap_layers=layers)
    with pytest.raises(InvalidRequest, match="leave drafts out"):
        LLM(folder, threads=1, ngram_tokens=2).generate([[1, 2]], tap_layers=(0,))
    assert llm.generate([[1, 2]])[0].taps is None
