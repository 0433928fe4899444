"""Say in a sentence for its author what the library says of a grammar that cannot be used."""

from __future__ import annotations

import re

MAX_FAULT_CHARS = 400
_EXCERPT = re.compile(r" \d+ \| .*$")
"""The lines around the place, which the client has; of a pattern they are not even the client's own."""
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_IN_SCHEMA = "failed to compile JSON schema: "
_NO_TEXT = "no text fits it: what it asks for leads to nothing, or only to itself"
_TOO_COMPLEX = "it is too complex: use fewer terminals that begin alike"
_NOT_JSON = r"^(?:failed to parse \"%json\": )?(.* at line \d+ column \d+)$"

_PLAIN: tuple[tuple[str, str], ...] = (
    (r"NoExtensionBias|NoExtension\b", _NO_TEXT),
    (r"too many expressions constructed|too many states|initial lexer configuration", _TOO_COMPLEX),
    (r"Unable to determine if regex is empty", "its patterns are too complex together: use fewer at a place"),
    (r"Current row has|Too many items", "it is too complex: too many rules may go on at one place"),
    (r"Unsatisfiable schema: (.*)", r"no value fits it: \1"),
    (r"Unimplemented(?: keys)?: \[(.*?)\]", r"it uses keywords that are not supported: \1; leave them out"),
    (r"Expecting object schema", 'the schema must be a JSON object, such as {"type": "object"}'),
    (r"Pointer '(.*?)' does not exist", r"a $ref leads to '\1', which is not in the schema"),
    (
        r"Resource '(.*?)' is not present",
        r"'\1' is elsewhere, and nothing is fetched: put it into $defs, or leave it out",
    ),
    (r"Invalid type: (.*)", r"type '\1' is none of JSON Schema"),
    (r"Unknown format: (.*)", r"format '\1' is not supported; use a pattern, or leave it out"),
    (r"invalid multiple of", "multipleOf must be a number above 0"),
    (r"Expected positive integer for '(.*?)', got (.*)", r"\1 must be a whole number from 0, not \2"),
    (r"(?i)recursion limit exceeded", "it is nested too deeply"),
    (_NOT_JSON, r"it is not JSON: \1"),
    (
        r"lookarounds not supported yet",
        "a pattern has ^, $ or \\b inside, which are not supported; leave them out",
    ),
    (r"regex parse error: .* error: (.*)", r"a pattern cannot be read: \1"),
    (r"GBNF to Lark: Rule '(.*?)' not found", r"rule '\1' is used and not defined"),
    (r"GBNF to Lark: No 'root' rule found", "it has neither Lark's rule 'start' nor GBNF's rule 'root'"),
    (
        r"GBNF to Lark: (.*)",
        r"read as GBNF, since it has no line with Lark's 'start:', it is wrong or cut off: \1",
    ),
    (r"unknown name: (.*)", r"rule \1 is used and not defined"),
    (r"duplicate rule: (.*)", r"rule \1 is defined twice"),
    (r"^lexer error$", "no token of a grammar begins here: is a quote or a slash not closed?"),
    (r"Expected token (.*?), found '\\n'.*", r"it ends early: \1 is missing"),
    (r"Expected token (.*?), found (.*?)(?: \(at.*)?$", r"\1 should be here, not \2"),
)
"""Patterns of what the library says, each with the words for it; the first that fits counts."""


def plain_fault(said: str, *, has_lines: bool) -> str:
    """Return what is wrong. `has_lines`: places that the library names are those of the client's own text."""
    said = " ".join(said.replace("<non-verbose/>", "").split())
    said = _EXCERPT.sub("", said).removesuffix(" ^")
    place = _PLACE.match(said)
    said = _PLACE.sub("", said).removesuffix(" ^")
    of_schema = said.startswith(_IN_SCHEMA)
    said = said.removeprefix(_IN_SCHEMA)
    for pattern, words in _PLAIN:
        found = re.search(pattern, said)
        if found is not None:
            said = found.expand(words.replace("\\b", "\\\\b"))
            break
    if of_schema:
        said = f"its JSON schema: {said}"
    if place is not None and has_lines:
        said = f"line {place[1]}, column {place[2]}: {said}"
    return said[:MAX_FAULT_CHARS]
