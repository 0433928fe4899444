"""Tools that the answer to a request may call, and how its model writes such calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.gateway.request.tool_grammar import fault_of_schema, tool_grammar
from shared.errors import InvalidRequest, PenstockError
from shared.messages import Tool
from shared.sampling.parameters import Grammar
from shared.text.tool_formats import ToolFormat

ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` are told to the model. `required`: it has to call one, or that of `name` alone, once.
    `parallel`: it may call several in one answer. It is not told of those that are `left_out`, by
    their names, and cannot call them."""

    tools: tuple[Tool, ...] = ()
    required: bool = False
    name: str = ""
    parallel: bool = True
    left_out: tuple[str, ...] = ()

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        named = (tool for tool in self.tools if self.name in ("", tool.name))
        return tuple(tool for tool in named if tool.name not in self.left_out)

    def told_of(self, places: Sequence[int]) -> ToolUse:
        """Return the use of a model that was told of the tools at these places alone, () for all."""
        told = {self.tools[place].name for place in places}
        left_out = tuple(tool.name for tool in self.tools if places and tool.name not in told)
        return replace(self, left_out=left_out)

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
