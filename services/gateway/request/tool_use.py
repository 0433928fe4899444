"""Tools that the answer to a request may call, and how its model writes such calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.gateway.request.tool_grammar import fault_of_schema, tool_grammar
from shared.errors import InvalidRequest, PenstockError
from shared.messages import Tool
from shared.sampling.parameters import Grammar
from shared.text.tool_formats import ToolFormat

ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` are told to the model. `required`: it has to call one, or that of `name` alone, once.
    `parallel`: it may call several in one answer."""

    tools: tuple[Tool, ...] = ()
    required: bool = False
    name: str = ""
    parallel: bool = True

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if self.name in ("", tool.name))

    def grammar(
        self, tool_format: ToolFormat, marker_ids: Mapping[str, int], answer: Grammar | None = None
    ) -> Grammar:
        """`answer` is what an answer matches that calls nothing. Raises what `tool_grammar` raises."""
        return tool_grammar(
            self.callable_tools,
            tool_format,
            marker_ids,
            required=self.required,
            parallel=self.parallel and not self.name,
            answer_schema="" if answer is None else answer.text or ANY_OBJECT,
        )

    def blame(self, error: PenstockError) -> PenstockError:
        """Turn a worker's error about that grammar into a sentence about the tool whose schema is at
        fault."""
        fault = fault_of_schema(error.message) if self.tools and isinstance(error, InvalidRequest) else None
        if fault is None:
            return error
        index, why = fault
        if index == len(self.callable_tools):
            return InvalidRequest(
                f"sampling.json_schema cannot be held to ({why}): send a simpler schema", hop=error.hop
            )
        place = self.tools.index(self.callable_tools[index])
        return InvalidRequest(
            f"chat.tools[{place}].parameters cannot be held to ({why}): send a simpler schema", hop=error.hop
        )
