"""A line of `penstock chat` that is edited: arrows, words, history and search in it, as in a shell."""

from __future__ import annotations

import sys

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.vt100 import Vt100_Output

from services.cli.ask.chat_history import ChatHistory
from services.cli.ask.line_input import MORE_PROMPT, PROMPT, block_text, is_open_block


class LineEditor:
    """A pasted text of several lines is one message; Alt-Enter begins a line, Ctrl-R searches the history."""

    def __init__(self, history: ChatHistory | None = None) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=ChatHistory.of_user() if history is None else history,
            multiline=Condition(_is_in_block),
            prompt_continuation=MORE_PROMPT,
            key_bindings=_keys(),
            input=create_input(sys.stdin),
            output=_output(),
        )

    def read(self) -> str:
        return block_text(self._session.prompt())


def _is_in_block() -> bool:
    return is_open_block(get_app().current_buffer.text)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _output() -> Vt100_Output:
    """Ask the terminal for nothing: one that does not answer would be told of in the middle of a talk."""
    found = Vt100_Output.from_pty(sys.stdout)

    def size() -> Size:
        return found.get_size()

    return Vt100_Output(sys.stdout, size, term=found.term, enable_cpr=False)
