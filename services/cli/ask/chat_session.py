"""The conversation of `penstock chat`: its turns, and what is done with a line that the user typed."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.chat_commands import HELP, MARK, UNSET, ChatCommand, sampling_name, sampling_value
from services.cli.ask.generate_call import OpenGateway, interrupted_terminal, show_answer
from services.cli.ask.saved_chat import SavedChat, load_chat, save_chat
from services.cli.ask.served_models import ServedModels
from services.cli.view.answer_output import TextOutput, terminal_width
from services.cli.view.reasoning_view import ReasoningView
from services.cli.view.terminal_text import TextSink
from services.cli.view.timeline_table import timeline_table
from shared.errors import ContextExceeded, PenstockError

FULL_SHARE = 0.8
"""The share of the context from which on a conversation is said to be near its end."""


class TextView(Protocol):
    """Shows text that grows; what is written after `end` begins on a line of its own."""

    def add(self, text: str) -> None: ...
    def end(self) -> None: ...


class ChatOutput(TextOutput):
    """Shows an answer, by `view` where there is one, and keeps it."""

    def __init__(
        self, out: TextSink, err: TextSink, view: TextView | None, reasoning: ReasoningView | None
    ) -> None:
        super().__init__(out, err, command="penstock chat", reasoning=reasoning)
        self._view = view
        self.pieces: list[str] = []

    def text(self, delta: pb.TextDelta) -> None:
        self.pieces.append(delta.text)
        if self._view is None:
            super().text(delta)
        else:
            self.show_reasoning(delta)
            if delta.text:
                self._view.add(delta.text)

    def end(self, terminal: pb.Terminal) -> None:
        if self._view is not None:
            self._view.end()
        super().end(terminal)

    def said(self) -> str:
        return "".join(self.pieces)

    def longer_answer(self, tokens: int) -> str:
        return f"/set max_tokens {tokens} lets the next one go on for longer"


class ChatSession:
    """`template` is a request without its prompt; `view` shows the answers, which else are written as they
    come, `reasoning` what the model thinks; `ended` is set by /quit."""

    def __init__(
        self,
        gateway: OpenGateway,
        template: pb.GenerateRequest,
        models: ServedModels,
        system: str | None,
        out: TextSink,
        err: TextSink,
        *,
        retrieve: bool = False,
        view: TextView | None = None,
        reasoning: ReasoningView | None = None,
    ) -> None:
        self.ended = False
        self._gateway = gateway
        self._template = template
        self._models = models
        self._system = system or ""
        self._turns: list[pb.ChatMessage] = []
        self._retrieve = retrieve
        self._timeline: pb.Timeline | None = None
        self._out = out
        self._err = err
        self._view = view
        self._reasoning = reasoning

    def take_line(self, line: str) -> bool:
        """Say it, or do what it commands. Whether Ctrl-C cancelled that."""
        text = line.strip()
        if text.startswith(MARK * 2):
            text = text.removeprefix(MARK)
        elif text.startswith(MARK):
            return self._obey(ChatCommand.of(text))
        return bool(text) and self._say(text)

    def _say(self, text: str) -> bool:
        """An answer that was cancelled stays as far as it came; a question without any is taken back."""
        question = pb.ChatMessage(role="user", content=text)
        output = ChatOutput(self._out, self._err, self._view, self._reasoning)
        interrupted = False
        try:
            terminal = show_answer(self._gateway, self._request(question), output)
        except KeyboardInterrupt:
            interrupted = True
            output.end(interrupted_terminal())
        else:
            self._timeline = terminal.timeline
            self._tell_room(terminal)
        answer = "".join(output.pieces)
        if answer:
            self._turns += [question, pb.ChatMessage(role="assistant", content=answer)]
        return interrupted

    def _tell_room(self, terminal: pb.Terminal) -> None:
        """Say what to do about a conversation that will soon be longer than the model's context."""
        tokens = terminal.usage.prompt_tokens + terminal.usage.completion_tokens
        most = self._models.context_tokens(self._template.model)
        if terminal.error.code == ContextExceeded.code or (most and tokens >= FULL_SHARE * most):
            taken = f"takes {tokens} of the model's {most} tokens" if tokens else "is too long"
            self._print_notice(f"the conversation {taken}: /clear begins anew, /save FILE keeps it")

    def _request(self, question: pb.ChatMessage) -> pb.GenerateRequest:
        request = pb.GenerateRequest()
        request.CopyFrom(self._template)
        head = [pb.ChatMessage(role="system", content=self._system)] if self._system else []
        request.chat.messages.extend([*head, *self._turns, question])
        request.chat.template_optional = True
        request.retrieval.enabled = self._retrieve
        return request

    def _obey(self, command: ChatCommand) -> bool:
        """Whether Ctrl-C cancelled that."""
        match command.name:
            case "/retry":
                return self._retry()
            case "/quit":
                self.ended = True
            case "/timeline":
                self._show_timeline()
            case _:
                self._print_notice(self._done(command))
        return False

    def _done(self, command: ChatCommand) -> str:
        """Do what changes the talk, and return what there is to say about it."""
        does = {
            "/help": lambda _: HELP,
            "/clear": self._clear,
            "/model": self._set_model,
            "/system": self._set_system,
            "/set": self._set_sampling,
            "/retrieve": self._set_retrieval,
            "/save": self._save,
            "/load": self._load,
        }.get(command.name)
        if does is None:
            return f"there is no {command.name}; /help lists what there is"
        try:
            return does(command.rest)
        except (PenstockError, ValueError) as error:
            return str(error)

    def _retry(self) -> bool:
        if not self._turns:
            self._print_notice("there is no question yet")
            return False
        *self._turns, question, answer = self._turns
        before = len(self._turns)
        interrupted = self._say(question.content)
        if len(self._turns) == before:  # there is no new one: the old one stays
            self._turns += [question, answer]
        return interrupted

    def _clear(self, _rest: str) -> str:
        self._turns.clear()
        return "the conversation begins anew"

    def _set_model(self, name: str) -> str:
        if not name:
            return self._models.listed(self._template.model)
        self._models.check(name)
        self._template.model = name
        return f"{name} answers from now on"

    def _set_system(self, text: str) -> str:
        if text:
            self._system = "" if text == "off" else text
        return f"the system message is: {self._system}" if self._system else "there is no system message"

    def _set_sampling(self, rest: str) -> str:
        if rest:
            name, _, text = rest.partition(" ")
            if text.strip() in ("", UNSET):
                self._template.sampling.ClearField(sampling_name(name))
            else:
                setattr(self._template.sampling, name, sampling_value(name, text.strip()))
        told = [f"{field.name} {_shown(value)}" for field, value in self._template.sampling.ListFields()]
        return ", ".join(told) or "sampling is the model's own"

    def _set_retrieval(self, wish: str) -> str:
        if wish not in ("on", "off"):
            return "say /retrieve on or /retrieve off"
        self._retrieve = wish == "on"
        return f"retrieval is {wish}"

    def _save(self, file: str) -> str:
        if not file:
            return "say /save FILE"
        messages = tuple((turn.role, turn.content) for turn in self._turns)
        path = Path(file).expanduser()
        save_chat(path, SavedChat(self._template.model, self._system, messages))
        return f"{len(messages)} messages are in {path}; /load {file} goes on with them"

    def _load(self, file: str) -> str:
        if not file:
            return "say /load FILE"
        chat = load_chat(Path(file).expanduser())
        self._turns = [pb.ChatMessage(role=role, content=text) for role, text in chat.messages]
        self._system = chat.system
        if chat.model:
            self._template.model = chat.model
        return f"the conversation has {len(self._turns)} messages"

    def _show_timeline(self) -> None:
        if self._timeline is None:
            self._print_notice("there is no answer yet")
        else:
            self._out.write(timeline_table(self._timeline, terminal_width()))
            self._out.flush()

    def _print_notice(self, sentence: str) -> None:
        print(sentence, file=self._err)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
