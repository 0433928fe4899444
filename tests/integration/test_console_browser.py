"""The console in a browser before a scripted fleet: hostile text, keys, and a cancel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.gateway.scope.outcome import Outcome
from shared.errors import Unavailable
from shared.files.api_key_file import new_api_key
from shared.messages import (
    AnswerCited,
    CitedSentence,
    Message,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Tokenize,
)
from tests.integration.gateway_peers import Answer
from tests.integration.http_edge import edge
from tests.integration.test_gateway_cited_sentences import PATIENCE_MS, citing
from tests.integration.test_gateway_console import keys_of
from tests.integration.test_gateway_prompt_passages import RIVER, serving
from tests.support.browser import Page, page
from tests.support.records import make_record
from tests.support.wait import until

MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><b>bold</b>'
ANSWERED = "document.querySelector('.message.answer[aria-busy=\"false\"]')"


async def ask(tab: Page, question: str) -> None:
    """Work as a reader does from the keyboard alone."""
    await tab.until("document.querySelector('#model option')")
    await tab.run("document.querySelector('#question').focus()")
    await tab.write(question)
    await tab.press("Enter", 13)


def hostile_passage(message: Message) -> Answer:
    assert isinstance(message, Retrieve)
    return Retrieved((ScoredPassage(f"{MARKUP}.md", f"{MARKUP} flows", 1.0, 0, 9),), "", 1, 1, corpus=MARKUP)


async def test_markup_in_questions_answers_and_passages_stays_text(nats_url: str) -> None:
    async with page() as tab, serving(nats_url) as (peers, running):
        peers["retriever-0"].answers = hostile_passage
        await tab.open(f"http://{running.http.address}/")
        await ask(tab, MARKUP)
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, prefill.prompt_len, f"{MARKUP} [1]", ids=(7,), finish="stop")
        await tab.until(ANSWERED)
        assert await tab.text(".message.user .text") == MARKUP
        assert await tab.text(".message.answer .text") == f"{MARKUP} [1]"
        assert await tab.text(".sources .passage") == f"{MARKUP} flows"
        assert MARKUP in await tab.text(".sources .source")
        await tab.click(".cite")
        assert await tab.run("document.querySelector('.sources').open")
        assert await tab.run("document.querySelector('.sources li.cited') === document.activeElement")
        made = "document.querySelectorAll('.messages img, .messages script, .messages b').length"
        assert await tab.run(made) == 0
        assert await tab.run("window.hacked") is None
        refused = "Promise.resolve().then(() => (document.body.innerHTML = '<i>')).catch((e) => e.name)"
        assert await tab.run(refused) == "TypeError"  # the policy lets no text become markup


@pytest.mark.thorough
async def test_a_sentence_leads_to_the_words_that_support_it(nats_url: str) -> None:
    """Places count characters, of which a wave is one, and two of a browser's units."""
    cited = AnswerCited((CitedSentence(2, 23, 2, 6, 20, 0.75), CitedSentence(24, 35, support=0.25)))
    async with page() as tab, serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["retriever-0"].answers = citing(cited)
        await tab.open(f"http://{running.http.address}/")
        await ask(tab, "what flows?")
        envelope, prefill = await peers.placed()
        answer = "\U0001f30a Water flows downhill. It is blue."
        await peers.text(envelope.request_id, prefill.prompt_len, answer, ids=(7,), finish="stop")
        await tab.until(ANSWERED)
        shown = answer.replace("downhill.", "downhill.[2]")
        assert await tab.text(".message.answer .text") == shown
        assert await tab.text(".unsupported") == "It is blue."
        await tab.click(".cite")
        assert await tab.text(".sources li.cited .passage") == RIVER.text
        assert await tab.text(".sources li.cited mark") == RIVER.text[6:20] == "flows downhill"


async def test_a_key_is_asked_for_kept_in_the_tab_and_sent(nats_url: str, tmp_path: Path) -> None:
    operator, tenant = new_api_key(), new_api_key()
    keys = keys_of(tmp_path, operator=operator, tenant=tenant)
    async with page() as tab, edge(nats_url, api_keys=keys) as here:
        await tab.open(f"http://{here.running.http.address}/")
        await tab.until("document.querySelector('#key-dialog').open")
        assert [url for url in tab.asked if "/console/" in url and "files" not in url] == []  # the page knows
        await enter(tab, "wrong")
        await tab.until("document.querySelector('#key-refused').textContent.includes('API key')")
        await enter(tab, tenant)
        await tab.until("document.querySelector('#link').textContent === 'acme'")
        assert await tab.run("document.querySelector('#pipeline').hidden")
        assert not await tab.run("document.querySelector('#operators-only').hidden")
        assert await tab.run("Object.keys(localStorage).length + document.cookie.length") == 0
        assert await tab.run("sessionStorage.getItem('penstock.key')") == tenant
        await tab.click("#key-button")
        await enter(tab, operator)
        await tab.until("document.querySelectorAll('.instance').length >= 4")
        assert not await tab.run("document.querySelector('#pipeline').hidden")


async def enter(tab: Page, key: str) -> None:
    await tab.until("document.querySelector('#key-dialog').open")
    await tab.run(f"document.querySelector('#key').value = {json.dumps(key)}")
    await tab.run("document.querySelector('#key-form').requestSubmit()")


@pytest.mark.thorough
async def test_failed_and_slow_requests_are_found_among_many_others(nats_url: str) -> None:
    lost = Outcome.of(Unavailable("no decode worker is left", hop="decode"))
    rows = "[...document.querySelectorAll('#request-rows tr')].map((row) => row.dataset.key)"
    async with page() as tab, edge(nats_url) as here:
        context = here.running.context
        for number in range(200):
            context.ended_requests.add(make_record(request_id=f"other-{number}", ttft_us=1000 + number))
        context.ended_requests.add(make_record(request_id="late", ttft_us=8000, total_us=9000))
        context.record_end(
            make_record(request_id="lost", outcome="failed", finish="", error="unavailable"), lost
        )
        for number in range(200, 400):
            context.ended_requests.add(make_record(request_id=f"other-{number}", ttft_us=10))
        await tab.open(f"http://{here.running.http.address}/")
        await tab.until(f"{rows}[0] === 'other-399'")
        await tab.click("#request-views button:nth-child(2)")
        assert await tab.run(rows) == ["lost"]
        await tab.click("#request-views button:nth-child(3)")
        assert (await tab.run(rows))[0] == "late"
        assert (
            await tab.run("document.querySelector('#request-views [aria-pressed=true]').textContent")
            == "Slow start"
        )


async def test_a_cancel_ends_the_request_and_keeps_what_has_come(nats_url: str) -> None:
    async with page() as tab, edge(nats_url) as here:
        await tab.open(f"http://{here.running.http.address}/")
        await tab.until("document.querySelector('#model option')")
        await tab.click("#retrieval")
        await ask(tab, "hello")
        envelope, prefill = await here.peers.placed()
        await here.peers.text(envelope.request_id, prefill.prompt_len, "so far", ids=(7,))
        await tab.until("document.querySelector('.message.answer .text').textContent === 'so far'")
        assert await tab.run("document.querySelector('.message.answer').ariaBusy") == "true"
        await tab.press("Escape", 27)
        await tab.until(ANSWERED)
        assert await tab.text(".message.answer .failed") == "Cancelled."
        assert await tab.run("document.querySelector('#cancel').hidden")
        await here.idle()
        await until(lambda: any(here.peers.cancels().values()))


@pytest.mark.thorough
async def test_a_cancelled_answer_stays_in_the_conversation_until_a_new_one(nats_url: str) -> None:
    async with page() as tab, edge(nats_url) as here:
        await tab.open(f"http://{here.running.http.address}/")
        await tab.until("document.querySelector('#model option')")
        await tab.click("#retrieval")
        for question, asked in (("hello", 1), ("go on", 3), ("anew", 1)):
            await ask(tab, question)
            envelope, prefill = await here.peers.placed()
            messages = [m for _, m in here.peers["tokenizer-0"].of(Tokenize) if isinstance(m, Tokenize)]
            assert len(messages[-1].chat) == asked
            await here.peers.text(envelope.request_id, prefill.prompt_len, "so far", ids=(7,))
            await tab.until("[...document.querySelectorAll('.answer .text')].at(-1).textContent === 'so far'")
            await tab.click("#cancel" if question != "go on" else "#chat-clear")
            await tab.until("document.querySelector('#cancel').hidden")
            await here.idle()
            here.peers["prefill-0"].got.clear()
