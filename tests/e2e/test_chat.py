"""`penstock chat` in a terminal, with a real stack behind it."""

from __future__ import annotations

import asyncio
import sys

from tests.e2e.conftest import GetStack
from tests.support.terminal import CTRL_C, CTRL_D, Terminal

PROMPT = "> "
CUT = "the answer was cut after 400 tokens: /set max_tokens 800 lets the next one go on for longer"


async def test_a_conversation_streams_is_cancelled_and_goes_on(get_stack: GetStack) -> None:
    stack = get_stack()
    command = (sys.executable, "-m", "services.cli", "chat", "--state-dir", str(stack.state_dir))
    options = ("--temperature", "0", "--ignore-eos", "--max-tokens", "400")
    with Terminal([*command, *options]) as terminal:
        await asyncio.to_thread(terminal.until, PROMPT)
        terminal.enter("Once upon a time\n")
        await asyncio.to_thread(terminal.until, "time\n")
        await asyncio.to_thread(terminal.until, " ")  # the answer comes in
        terminal.enter(CTRL_C)
        await asyncio.to_thread(terminal.until, "interrupted from the keyboard\n" + PROMPT)
        await stack.until_idle()
        terminal.enter("/clear\n")
        await asyncio.to_thread(terminal.until, "anew\n" + PROMPT)
        terminal.enter("Once again\n")
        await asyncio.to_thread(terminal.until, CUT + "\n" + PROMPT)
        terminal.enter("/timeline\n")
        assert "decode" in await asyncio.to_thread(terminal.until, ", total ")
        await asyncio.to_thread(terminal.until, PROMPT)  # an end of input that nobody reads yet may be lost
        terminal.enter(CTRL_D)
        assert await asyncio.to_thread(terminal.end) == 0
    assert "Traceback" not in terminal.shown
