"""The conversation of `penstock chat`: its turns, and what is done with a line that the user typed."""

from __future__ import annotations

from typing import Protocol

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.generate_call import OpenGateway, interrupted_terminal, show_answer
from services.cli.view.answer_output import TextOutput, terminal_width
from services.cli.view.terminal_text import TextSink
from services.cli.view.timeline_table import timeline_table

MARK = "/"
HELP = """\
/retrieve on|off  answer from the indexed folder, or from the conversation alone
/timeline         where the time of the last answer went
/clear            forget the conversation
/help             this
/quit             leave; so do Ctrl-D, and Ctrl-C twice
//text            say a text that begins with a slash
Ctrl-C            cancel the answer that comes in; what has come of it stays in the conversation"""


class TextView(Protocol):
    """Shows text that grows; what is written after `end` begins on a line of its own."""

    def add(self, text: str) -> None: ...
    def end(self) -> None: ...


class ChatOutput(TextOutput):
    """Shows an answer, by `view` where there is one, and keeps it."""

    def __init__(self, out: TextSink, err: TextSink, view: TextView | None) -> None:
        super().__init__(out, err, command="penstock chat")
        self._view = view
        self.pieces: list[str] = []

    def text(self, delta: pb.TextDelta) -> None:
        self.pieces.append(delta.text)
        if self._view is None:
            super().text(delta)
        else:
            self._view.add(delta.text)

    def end(self, terminal: pb.Terminal) -> None:
        if self._view is not None:
            self._view.end()
        super().end(terminal)


class ChatSession:
    """`template` is a request without its prompt; `view` shows the answers, which else are written as they
    come; `ended` is set by /quit."""

    def __init__(
        self,
        gateway: OpenGateway,
        template: pb.GenerateRequest,
        system: str | None,
        out: TextSink,
        err: TextSink,
        *,
        retrieve: bool = False,
        view: TextView | None = None,
    ) -> None:
        self.ended = False
        self._gateway = gateway
        self._template = template
        self._head = [pb.ChatMessage(role="system", content=system)] if system else []
        self._turns: list[pb.ChatMessage] = []
        self._retrieve = retrieve
        self._timeline: pb.Timeline | None = None
        self._out = out
        self._err = err
        self._view = view

    def take_line(self, line: str) -> bool:
        """Say it, or do what it commands. Whether Ctrl-C cancelled that."""
        text = line.strip()
        if text.startswith(MARK * 2):
            text = text.removeprefix(MARK)
        elif text.startswith(MARK):
            self._command(*text.split())
            return False
        return bool(text) and self._say(text)

    def _say(self, text: str) -> bool:
        """An answer that was cancelled stays as far as it came; a question without any is taken back."""
        question = pb.ChatMessage(role="user", content=text)
        output = ChatOutput(self._out, self._err, self._view)
        interrupted = False
        try:
            self._timeline = show_answer(self._gateway, self._request(question), output).timeline
        except KeyboardInterrupt:
            interrupted = True
            output.end(interrupted_terminal())
        answer = "".join(output.pieces)
        if answer:
            self._turns += [question, pb.ChatMessage(role="assistant", content=answer)]
        return interrupted

    def _request(self, question: pb.ChatMessage) -> pb.GenerateRequest:
        request = pb.GenerateRequest()
        request.CopyFrom(self._template)
        request.chat.messages.extend([*self._head, *self._turns, question])
        request.chat.template_optional = True
        request.retrieval.enabled = self._retrieve
        return request

    def _command(self, name: str, *arguments: str) -> None:
        match (name, *arguments):
            case ("/quit",):
                self.ended = True
            case ("/help",):
                self._print_notice(HELP)
            case ("/clear",):
                self._turns.clear()
                self._print_notice("the conversation begins anew")
            case ("/timeline",):
                self._show_timeline()
            case ("/retrieve", "on" | "off" as wish):
                self._retrieve = wish == "on"
                self._print_notice(f"retrieval is {wish}")
            case ("/retrieve", *_):
                self._print_notice("say /retrieve on or /retrieve off")
            case _:
                self._print_notice(f"there is no {' '.join((name, *arguments))}; /help lists what there is")

    def _show_timeline(self) -> None:
        if self._timeline is None:
            self._print_notice("there is no answer yet")
        else:
            self._out.write(timeline_table(self._timeline, terminal_width()))
            self._out.flush()

    def _print_notice(self, sentence: str) -> None:
        print(sentence, file=self._err)
