"""The tokenizer of a model: text and chats to ids, ids to text."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence, Set
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from shared.engine.loading.gguf.find_file import find_gguf
from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Tool
from shared.text.chat_rendering import render_chat
from shared.text.chat_template import ChatTemplate
from shared.text.control_tokens import ControlTokens
from shared.text.decoder_stages import DecoderStageFactory, token_bytes
from shared.text.incremental import IncrementalDecoder, PlainTexts
from shared.text.retrieval_prompt import INSTRUCTED_FORM
from shared.text.thinking_formats import ThinkingFormat
from shared.text.tokenizer_files import read_directory, read_gguf
from shared.text.tool_formats import ToolFormat
from shared.text.tool_prompt import PLAIN_FORMAT, plain_turns
from shared.text.vocabulary import check_vocabulary

TAIL_TOKENS = 32
"""The last tokens of a prompt, in which the opening of a model's thinking has room."""


class TextTokenizer:
    """`tokenizer.json` and the chat template beside it, or what a GGUF file has of both.

    Immutable; may be used from several threads.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stages: tuple[DecoderStageFactory, ...],
        chat_template: ChatTemplate | None,
        special_tokens: dict[str, str],
        model_vocab_size: int,
        retrieval_form: str = INSTRUCTED_FORM,
        most_token_bytes: int = 0,
    ) -> None:
        """`most_token_bytes`: the most bytes of a text that one token stands for, 0 where nobody can tell."""
        tokenizer.no_truncation()  # settings of a training run that tokenizer.json may have kept
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._stages = stages
        self._plain_texts = PlainTexts(self.piece, stages)
        self._chat_template = chat_template
        self._special_ids = {
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        self.special_tokens = special_tokens
        self.vocab_size = max(model_vocab_size, max(tokenizer.get_vocab().values(), default=-1) + 1)
        """Ids are below this: those of the tokenizer and those the model pads its vocabulary with."""
        self.most_token_bytes = most_token_bytes
        self.retrieval_form = retrieval_form
        """The form in which it was taught to answer from passages (`retrieval_form` in
        tokenizer_config.json)."""
        thinking = self.thinking_format
        markers = (*self.tool_format.markers, *(() if thinking is None else thinking.markers))
        self._control_tokens = ControlTokens(tokenizer, markers)

    @classmethod
    def load(cls, path: Path) -> TextTokenizer:
        """Read a model directory or a GGUF file.

        NotFound without tokenizer.json, InvalidRequest when a file is broken.
        """
        gguf = find_gguf(path)
        read = read_directory(path) if gguf is None else read_gguf(gguf)
        # The JSON goes before anything is made that stays, with what Python keeps of it to use again: each
        # object among what it leaves would hold on to a megabyte, of eight.
        gc.collect()
        template = read.template
        return cls(
            read.tokenizer,
            stages=read.stages,
            chat_template=None if template is None else ChatTemplate(template, read.special_tokens),
            special_tokens=read.special_tokens,
            model_vocab_size=read.model_vocab_size,
            retrieval_form=read.retrieval_form,
            most_token_bytes=read.most_token_bytes,
        )

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def tool_format(self) -> ToolFormat:
        """The format in which the model is taught to write its calls: by its chat template, or by our own
        prompt."""
        known = None if self._chat_template is None else self._chat_template.tool_format
        return known or PLAIN_FORMAT

    @property
    def thinking_format(self) -> ThinkingFormat | None:
        """The format in which the model thinks before it answers, by its chat template; None: it does not."""
        return None if self._chat_template is None else self._chat_template.thinking_format

    def ends_with(self, token_ids: Sequence[int], text: str) -> bool:
        """Return whether a prompt of these ids ends with `text`, white space aside."""
        tail: str = self._tokenizer.decode(list(token_ids[-TAIL_TOKENS:]), skip_special_tokens=False)
        return tail.rstrip().endswith(text)

    def token_id(self, text: str) -> int | None:
        """Return the id of the one token that is all of `text`, None where that is several."""
        token_id: int | None = self._tokenizer.token_to_id(text)
        return token_id

    def special_ids_of(self, texts: Iterable[str]) -> dict[str, int]:
        """Return those of `texts` that are special tokens, with their ids."""
        ids = {text: self._tokenizer.token_to_id(text) for text in texts}
        return {text: token_id for text, token_id in ids.items() if token_id in self._special_ids}

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a plain prompt, by default with the special tokens that tokenizer.json puts around a
        text.
        """
        return self._encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        turns: Sequence[ChatTurn],
        *,
        tools: Sequence[Tool] = (),
        template_optional: bool = False,
        effort: str = "",
    ) -> list[int]:
        """The ids of a conversation as the model's chat template writes it, up to where the answer begins.

        `effort`: as in `ChatTemplate.render`.

        Without a template: InvalidRequest, or with `template_optional` the contents joined by blank
        lines, as a plain prompt. Control tokens are those that the template writes: one that stands in what
        somebody said is text. Raises InvalidRequest when the template refuses the conversation.
        """
        if self._chat_template is None and not template_optional:
            raise InvalidRequest("this model has no chat template; send the prompt as plain text")
        controls = self._control_tokens
        if not controls.stand_in(turns, tools):
            return self._encode(
                self._render(turns, tools, effort), add_special_tokens=self._chat_template is None
            )
        rendered = self._render(*controls.break_names(turns, tools), effort)
        _check_unicode(rendered)
        return controls.encode(rendered, add_special_tokens=self._chat_template is None)

    def _render(self, turns: Sequence[ChatTurn], tools: Sequence[Tool], effort: str) -> str:
        if self._chat_template is None:
            return "\n\n".join(turn.content for turn in plain_turns(turns, tools))
        return render_chat(self._chat_template, turns, tools, effort)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of all ids at once, without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def decoder(
        self, prompt_tail_ids: Iterable[int] = (), *, shown_ids: Set[int] = frozenset()
    ) -> IncrementalDecoder:
        """Decode a stream of ids that follows the prompt whose last ids are given.

        `shown_ids`: special tokens that stand in the text by their names.
        """
        piece = partial(self.piece, shown_ids=shown_ids)
        return IncrementalDecoder(piece, self._stages, prompt_tail_ids, plain=self._plain_texts)

    def vocabulary(self) -> dict[str, int]:
        """The id of every token, those that were added to the trained ones too."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def piece(self, token_id: int, shown_ids: Set[int] = frozenset()) -> str | None:
        """The token string of an id; None for a special token and for an id that only the model knows."""
        if token_id in self._special_ids and token_id not in shown_ids:
            return None
        piece: str | None = self._tokenizer.id_to_token(token_id)
        return piece

    def token_bytes(self, token_id: int) -> bytes:
        """Return what the id stands for by itself in the middle of a text; a special token is its own
        name."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special_ids:
            return (token or "").encode()
        return token_bytes(token, self._stages)

    def check_ids(self, token_ids: Sequence[int]) -> None:
        """Raise InvalidRequest when one of `token_ids` is not in the vocabulary."""
        check_vocabulary(token_ids, self.vocab_size)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        _check_unicode(text)
        # `encode` keeps other threads from the interpreter for nearly as long as it takes, a batch does not.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids


def _check_unicode(text: str) -> None:
    """Raise InvalidRequest for half of a character, which a template may write too."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("the text has lone surrogates; send valid Unicode") from error
