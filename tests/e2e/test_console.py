"""The console as a person uses it: a real browser before a whole stack."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.browser import DESKTOP, PHONE, Page, page
from tests.support.stack import Stack

QUESTION = "How many tokens does a block hold?"
ANSWERED = "document.querySelector('.message.answer[aria-busy=\"false\"] .stats')"
NAMELESS = """
[...document.querySelectorAll('button, input, select, textarea, a[href], [role=img], section, dialog')]
  .filter((each) => each.checkVisibility() && !(each.ariaLabel || each.textContent.trim()
    || each.labels?.length || each.getAttribute('aria-labelledby'))).map((each) => each.outerHTML)
"""
WIDE = """
[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility()
  && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.tagName + '.' + each.className)
"""


@pytest.fixture
async def tab(documented_stack: Stack) -> AsyncIterator[Page]:
    async with page() as tab:
        await tab.look_as(DESKTOP)
        await tab.open(f"http://{documented_stack.http}/")
        await tab.until("document.querySelectorAll('.instance').length >= 8")
        yield tab
        assert tab.troubles == []


async def ask(tab: Page) -> None:
    await tab.run("document.querySelector('#question').focus()")
    await tab.write(QUESTION)
    await tab.press("Enter", 13)
    await tab.until(ANSWERED)


async def test_a_question_is_answered_with_its_passages_and_its_timeline(tab: Page) -> None:
    await ask(tab)
    assert "16 tokens" in await tab.text(".message.answer .text")
    assert await tab.run("document.querySelectorAll('.sources li').length") > 0
    phases = await tab.run(
        "[...document.querySelectorAll('#waterfall li > :first-child')].map((e) => e.innerText)"
    )
    assert {"admit", "retrieve", "tokenize", "decode"} <= set(phases)
    shares = "[...document.querySelectorAll('#waterfall .bar')].map((bar) => parseFloat(bar.style.width))"
    assert sum(await tab.run(shares)) == pytest.approx(100, abs=1)


@pytest.mark.thorough
async def test_the_pipeline_shows_every_instance_and_every_pipe(tab: Page, documented_stack: Stack) -> None:
    shown = await tab.run("[...document.querySelectorAll('.instance')].map((each) => each.dataset.key)")
    assert sorted(shown) == sorted(instance.id for instance in documented_stack.instances())
    assert await tab.run("document.querySelectorAll('#pipes .water').length") == 8
    assert await tab.run("document.querySelectorAll('#levels li').length") == 8


async def test_a_request_of_somebody_else_is_listed_and_its_timeline_chosen(tab: Page) -> None:
    asked = """fetch('/v1/chat/completions', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: 'a' }], max_tokens: 4 }),
    }).then((answer) => answer.headers.get('x-request-id'))"""
    request_id = await tab.run(asked)
    row = f"#request-rows tr[data-key='{request_id}'] button"
    await tab.until(f'document.querySelector("{row}")?.disabled === false')
    await tab.run(f'document.querySelector("{row}").focus()')
    await tab.press("Enter", 13)
    assert await tab.text("#timeline-name") == request_id
    assert await tab.text("#percentiles tr td:last-child") != "0"


async def test_nothing_is_asked_of_anybody_else(tab: Page, documented_stack: Stack) -> None:
    await ask(tab)
    assert [url for url in tab.asked if not url.startswith(f"http://{documented_stack.http}/")] == []


@pytest.mark.thorough(but="phone-dark")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_it_fits_its_window_and_everything_has_a_name(
    tab: Page, size: tuple[int, int], dark: bool
) -> None:
    await tab.look_as(size, dark=dark)
    await ask(tab)
    assert await tab.run(WIDE) == []
    assert await tab.run("document.documentElement.scrollWidth") <= size[0]
    assert await tab.run(NAMELESS) == []
    if folder := os.environ.get("PENSTOCK_TEST_PICTURES"):
        place = Path(folder) / f"console-{size[0]}-{'dark' if dark else 'light'}.png"
        place.write_bytes(await tab.picture(whole=True))


@pytest.mark.thorough
async def test_the_docs_show_every_operation(tab: Page, documented_stack: Stack) -> None:
    await tab.open(f"http://{documented_stack.http}/docs")
    paths = "fetch('/openapi.json').then((r) => r.json()).then((d) => Object.keys(d.paths).length)"
    await tab.until("document.querySelectorAll('#schemas details').length > 20")
    assert await tab.run("document.querySelectorAll('#operations details').length") == await tab.run(paths)
