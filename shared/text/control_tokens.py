"""Keep text text: what people, documents and tools say never becomes a control token of the model.

A chat template writes control tokens as text (`<|im_end|>`), and so may whoever speaks in the chat. Theirs
are broken with a mark before the template sees them; what is whole afterwards is the template's own.
Then all is encoded at once, by a tokenizer that knows its control tokens by names that nobody can write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Tool

RESERVED = re.compile("[\ufdd0-\ufdef]")
"""Unicode's noncharacters, which are for use inside of programs alone."""
MAX_NAME_CHARS = 256
"""The longest name of an added token."""
_MARK = "\ufdd0"
"""Stands inside a control token's name that somebody wrote, until the template has been rendered."""
_HIDDEN = re.compile("\ufdd3([\ufde0-\ufdef]+)\ufdd4")
_FIRST_DIGIT = 0xFDE0
"""A control token of one character cannot be broken: its number stands there, in digits that no name has."""
_NAME = "\ufdd1{}\ufdd2"
"""The name of a control token that stands in the rendered text, by its number."""


class ControlTokens:
    """The control tokens of a tokenizer: its special ones and `markers`, which open and close calls of tools
    and what a model thinks.

    What an assistant said may hold markers, as earlier calls do.
    """

    def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        too_long = [token.content for token in added if len(token.content) > MAX_NAME_CHARS]
        if too_long:
            raise InvalidRequest(
                f"the tokenizer has an added token of {len(too_long[0])} characters: "
                f"use one with at most {MAX_NAME_CHARS}"
            )
        if any(RESERVED.search(token.content) for token in added):
            raise InvalidRequest(
                "the tokenizer has an added token with noncharacters of Unicode: use another"
            )
        self._tokenizer = tokenizer
        self._special = {token.content for token in added if token.special}
        self._names = sorted(self._special | ({token.content for token in added} & set(markers)))
        self._any = _pattern(self._names)
        self._any_special = _pattern(self._special)

    def stand_in(self, turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> bool:
        """Return whether somebody has written one; nearly always nobody has."""
        return any(self._any.search(text) for text in _texts(turns, tools))

    def break_names(
        self, turns: Sequence[ChatTurn], tools: Sequence[Tool]
    ) -> tuple[list[ChatTurn], list[Tool]]:
        """Return the same with every control token in it broken. Raises InvalidRequest for text that has what
        only the marks of this module are made of."""
        if any(RESERVED.search(text) for text in _texts(turns, tools)):
            raise InvalidRequest(
                "the chat holds noncharacters of Unicode (U+FDD0 to U+FDEF) beside a control token of the "
                "model: leave them out"
            )
        return [self._broken_turn(turn) for turn in turns], [self._broken_tool(tool) for tool in tools]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of rendered text: control tokens that are whole are those, broken ones are text."""
        numbers = {name: number for number, name in enumerate(self._names)}
        named = self._any.sub(lambda found: _NAME.format(numbers[found[0]]), text)
        plain = _HIDDEN.sub(lambda found: _shown(found[1]), named.replace(_MARK, ""))
        (encoding,) = self._literal.encode_batch_fast([plain], add_special_tokens=add_special_tokens)
        return [self._id_of.get(token_id, token_id) for token_id in encoding.ids]

    @cached_property
    def _literal(self) -> Tokenizer:
        """The tokenizer under other names of its control tokens, so that theirs are text as any other."""
        spec = json.loads(self._tokenizer.to_str())
        names = {name: _NAME.format(number) for number, name in enumerate(self._names)}
        for token in spec["added_tokens"]:
            if token["content"] in names:
                token |= {"content": names[token["content"]], "normalized": False}
        model = spec["model"]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(piece, piece): piece_id for piece, piece_id in vocabulary.items()}
        else:
            model["vocab"] = [[names.get(piece, piece), *rest] for piece, *rest in vocabulary]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        try:
            return Tokenizer.from_str(json.dumps(spec))
        except Exception as error:  # the library raises plain Exception for whatever is wrong
            raise InvalidRequest(
                f"the chat holds a control token, which the model's tokenizer cannot read as text: {error}"
            ) from error

    @cached_property
    def _id_of(self) -> dict[int, int]:
        """The ids of control tokens in the model's vocabulary, by those in that of `_literal`."""
        pairs = [(_NAME.format(number), name) for number, name in enumerate(self._names)]
        ids = [(self._literal.token_to_id(named), self._tokenizer.token_to_id(name)) for named, name in pairs]
        return {named: known for named, known in ids if named is not None and known is not None}

    def _broken_turn(self, turn: ChatTurn) -> ChatTurn:
        pattern = self._any_special if turn.role == "assistant" else self._any
        calls = tuple(
            replace(call, id=_broken(call.id, self._any), arguments=_broken_json(call.arguments, self._any))
            for call in turn.tool_calls
        )
        return replace(
            turn,
            content=_broken(turn.content, pattern),
            reasoning=_broken(turn.reasoning, self._any),
            name=_broken(turn.name, pattern),
            tool_call_id=_broken(turn.tool_call_id, pattern),
            tool_calls=calls,
        )

    def _broken_tool(self, tool: Tool) -> Tool:
        parameters = _broken_json(tool.parameters, self._any) if tool.parameters else ""
        return Tool(tool.name, _broken(tool.description, self._any), parameters)


def _texts(turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> Iterator[str]:
    """Yield all that is said in a chat and of its tools, JSON with its characters as such."""
    for turn in turns:
        yield from (turn.content, turn.reasoning, turn.name, turn.tool_call_id)
        for call in turn.tool_calls:
            yield from (call.id, _plain_json(call.arguments))
    for tool in tools:
        yield from (tool.description, _plain_json(tool.parameters))


def _plain_json(text: str) -> str:
    """Return JSON without numbers for characters; what is no JSON as it is: whoever reads it says so."""
    if "\\u" not in text:
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that fits each of the names, the longest where one begins as another.

    A tree by their first characters: hundreds of names that begin alike cost no more than one.
    """
    tree: dict[str, Any] = {}
    for name in filter(None, names):
        branch = tree
        for character in name:
            branch = branch.setdefault(character, {})
        branch[""] = {}
    return re.compile(_alternatives(tree) if tree else "(?!)")


def _alternatives(tree: dict[str, Any]) -> str:
    longer = [re.escape(first) + _alternatives(rest) for first, rest in tree.items() if first]
    if not longer:
        return ""
    group = longer[0] if len(longer) == 1 else f"(?:{'|'.join(longer)})"
    return f"(?:{group})?" if "" in tree else group


def _broken(text: str, pattern: re.Pattern[str]) -> str:
    """Return the text with a mark after the first character of each name.

    What is left of a name may, with what follows, be another one: so until none is whole.
    """
    while pattern.search(text):
        text = pattern.sub(lambda found: _broken_name(found[0]), text)
    return text


def _broken_name(name: str) -> str:
    if len(name) > 1:
        return f"{name[0]}{_MARK}{name[1:]}"
    digits = "".join(chr(_FIRST_DIGIT + int(digit, 16)) for digit in f"{ord(name):x}")
    return f"\ufdd3{digits}\ufdd4"


def _shown(digits: str) -> str:
    """Return the character that was hidden behind its number."""
    return chr(int("".join(f"{ord(digit) - _FIRST_DIGIT:x}" for digit in digits), 16))


def _broken_json(text: str, pattern: re.Pattern[str]) -> str:
    """The same for each text in a JSON value, which may write its characters as numbers."""

    def broken(value: Any) -> Any:
        if isinstance(value, str):
            return _broken(value, pattern)
        if isinstance(value, list):
            return [broken(each) for each in value]
        if isinstance(value, dict):
            return {_broken(name, pattern): broken(each) for name, each in value.items()}
        return value

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _broken(text, pattern)
    changed = broken(value)
    return text if changed == value else json.dumps(changed, ensure_ascii=False)
