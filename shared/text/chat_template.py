"""Chat templates of Hugging Face models: jinja2 in a sandbox, with what such templates expect to find."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

from shared.errors import InvalidRequest, TooLarge
from shared.text.template_limits import LimitedEnvironment, counted_steps
from shared.text.thinking_formats import SWITCHES, find_thinking
from shared.text.tool_formats import find_format

MAX_RENDERED_CHARS = 8 << 20
"""A template that writes more is stopped; no context window is that long."""

EFFORT = "reasoning_effort"
"""The name under which gpt-oss' template is told how much."""
TEMPLATE_EFFORTS = ("low", "medium", "high")
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""The errors of the Python that a template is compiled to: of what is none, and of values that it was not
written for."""


class ChatTemplate:
    """One compiled template. Rendering may be done from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: "bos_token" and the like, as the template sees them.

        Raises InvalidRequest when `source` is not a template.
        """
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                f"the model's chat template cannot be compiled ({error}); correct it or send plain text"
            ) from error
        self._source = source
        self._special_tokens = dict(special_tokens)
        self.tool_format = find_format(source) if "tools" in variables else None
        """The format in which it teaches calls, where it is told of tools at all; None: it is not to be."""
        self.thinking_format = find_thinking(source)
        """The format in which its model thinks before it answers, None where it does not."""
        self._takes_effort = frozenset(variables) & {*SWITCHES, EFFORT}

    def knows_role(self, role: str) -> bool:
        """Return whether the role is written in it at all."""
        return re.search(f"['\"]{role}['\"]", self._source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        effort: str = "",
    ) -> str:
        """The text ends where the model's answer begins. `effort`: how much the model is to think, "none" to
        "high"; "": as the template says by itself.

        Raises InvalidRequest when the template refuses the conversation, TooLarge over MAX_RENDERED_CHARS.
        """
        variables: dict[str, Any] = {"messages": list(messages), "tools": list(tools) or None}
        variables |= {"documents": None, **self._special_tokens, **self._thinking_arguments(effort)}
        pieces: list[str] = []
        chars = 0
        try:
            with counted_steps():
                for piece in self._template.generate(add_generation_prompt=True, **variables):
                    chars += len(piece)
                    if chars > MAX_RENDERED_CHARS:
                        raise TooLarge(
                            f"the chat is rendered to over {MAX_RENDERED_CHARS} characters; shorten it"
                        )
                    pieces.append(piece)
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                f"the model's chat template refuses this conversation: {error or type(error).__name__}"
            ) from error
        return "".join(pieces)

    def _thinking_arguments(self, effort: str) -> dict[str, Any]:
        """Return those arguments that the template takes."""
        if not effort:
            return {}
        given: dict[str, Any] = dict.fromkeys(SWITCHES, effort != "none")
        given[EFFORT] = effort if effort in TEMPLATE_EFFORTS else TEMPLATE_EFFORTS[0]
        return {name: value for name, value in given.items() if name in self._takes_effort}


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_PublicNamespace
    )
    return environment


class _GenerationTag(Extension):
    """{% generation %}…{% endgeneration %} marks the model's turns for training: only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - declared so by the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PublicNamespace(Namespace):
    """A namespace() that takes no underscore names: those would reach past the sandbox into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)  # a template may call an attribute "self"
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no names with an underscore first: {name}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(time_format: str) -> str:
    return datetime.now().strftime(time_format)  # noqa: DTZ005 - templates mean the local date


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes for HTML, which would change the prompt
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
