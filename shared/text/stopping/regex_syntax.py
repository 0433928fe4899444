"""Read a regular expression in the syntax of Python's `re`, as far as it says which texts match.

What looks beyond a match (anchors, look-around) or back into it (references) is refused: nothing of that can
be followed in linear time, or known before the text has ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.text.stopping.char_set import KINDS, CharSet

MAX_REGEX_DEPTH = 16
"""The deepest nesting of groups in a pattern that ends answers."""
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_MAX_CODE = 0x10FFFF
_SIMPLE_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNT = re.compile(r"\{(\d+)?(,(\d+)?)?\}", re.ASCII)
_OPENING = re.compile(r"\((?:\?(?:P<[A-Za-z_]\w*>|([is]*):))?")
_FLAGS = re.compile(r"\(\?([is]+)\)")
_ANY_BUT_NEWLINE = CharSet(((10, 10),), negated=True)
_ANY = CharSet(negated=True)


@dataclass(frozen=True, slots=True)
class RegexPlace:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class RegexRow:
    """One node after the other; without any it is the empty text."""

    nodes: tuple[RegexNode, ...]


@dataclass(frozen=True, slots=True)
class RegexChoice:
    """One of several nodes."""

    nodes: tuple[RegexNode, ...]


@dataclass(frozen=True, slots=True)
class RegexRepeat:
    """A node from `least` to `most` times; None: any number of times."""

    node: RegexNode
    least: int
    most: int | None


RegexNode = RegexPlace | RegexRow | RegexChoice | RegexRepeat


def parse_regex(pattern: str) -> RegexNode:
    """Raises InvalidRequest whose sentence goes on behind the name of the pattern."""
    return _RegexReader(pattern).read()


class _RegexReader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._ignores_case = False
        self._dot_is_any = False

    def read(self) -> RegexNode:
        while flags := _FLAGS.match(self._pattern, self._at):
            self._set_flags(flags[1])
            self._at = flags.end()
        node = self._choice()
        if self._at < len(self._pattern):
            raise self._wrong("closes a group that is not open")
        return node

    def _choice(self) -> RegexNode:
        nodes = [self._row()]
        while self._takes("|"):
            nodes.append(self._row())
        return nodes[0] if len(nodes) == 1 else RegexChoice(tuple(nodes))

    def _row(self) -> RegexNode:
        nodes: list[RegexNode] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            nodes.append(self._counted(self._atom()))
        return nodes[0] if len(nodes) == 1 else RegexRow(tuple(nodes))

    def _counted(self, node: RegexNode) -> RegexNode:
        """Read the count behind `node`. Whether it is greedy is one: an answer ends at the first end."""
        count = self._count()
        if count is None:
            return node
        self._takes("?")
        if self._pattern[self._at : self._at + 1] == "+" or self._count() is not None:
            raise self._wrong("counts what is counted already")
        return RegexRepeat(node, *count)

    def _count(self) -> tuple[int, int | None] | None:
        sign = self._pattern[self._at : self._at + 1]
        if sign in _SIMPLE_COUNTS:
            self._at += 1
            return _SIMPLE_COUNTS[sign]
        found = _COUNT.match(self._pattern, self._at)
        if found is None or (found[1] is None and found[2] is None):
            return None  # a brace that counts nothing is itself
        least = int(found[1] or 0)
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self._wrong("counts to less than it counts from")
        self._at = found.end()
        return least, most

    def _atom(self) -> RegexNode:
        char = self._pattern[self._at]
        if char == "(":
            return self._group()
        if char in "*+?":
            raise self._wrong("counts nothing")
        if char in "^$":
            raise self._wrong(rf"is an anchor: leave it out, or write \{char} for the character itself")
        self._at += 1
        if char == ".":
            return RegexPlace(_ANY if self._dot_is_any else _ANY_BUT_NEWLINE)
        if char == "[":
            return RegexPlace(self._set())
        if char == "\\":
            found = self._escape()
            return RegexPlace(self._one(found) if len(found) == 1 else CharSet(kinds=(found[1],)))
        return RegexPlace(self._one(char))

    def _group(self) -> RegexNode:
        opening = _OPENING.match(self._pattern, self._at)
        assert opening is not None
        if self._pattern[opening.end() : opening.end() + 1] == "?":
            raise self._wrong("begins a group that is not supported: use (…), (?:…), (?P<name>…) or (?i:…)")
        if self._depth == MAX_REGEX_DEPTH:
            raise self._wrong(f"is nested deeper than {MAX_REGEX_DEPTH} groups")
        before = self._ignores_case, self._dot_is_any
        self._set_flags(opening[1] or "")
        self._at = opening.end()
        self._depth += 1
        node = self._choice()
        if not self._takes(")"):
            raise _incomplete("a group lacks its )")
        self._depth -= 1
        self._ignores_case, self._dot_is_any = before
        return node

    def _set(self) -> CharSet:
        """Read what follows an opening bracket."""
        negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        kinds: list[str] = []
        begin = self._at
        while self._at == begin or not self._takes("]"):  # one that comes first is a character
            low = self._set_part()
            if len(low) > 1:
                kinds.append(low[1])
                continue
            high = low
            if self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at):
                self._at += 1
                begin_of_high = self._at
                high = self._set_part()
                if len(high) > 1 or high < low:
                    self._at = begin_of_high
                    raise self._wrong("ends a range before its beginning, or by what is no character")
            ranges.append((ord(low), ord(high)))
        return CharSet(tuple(ranges), tuple(kinds), negated, self._ignores_case)

    def _set_part(self) -> str:
        """Read one character, or a backslash and the letter of a kind."""
        if self._at >= len(self._pattern):
            raise _incomplete("a set lacks its ]")
        char = self._pattern[self._at]
        self._at += 1
        return self._escape() if char == "\\" else char

    def _escape(self) -> str:
        """Read what follows a backslash: return a character, or a backslash and the letter of a kind."""
        if self._at >= len(self._pattern):
            raise _incomplete("nothing stands behind its last backslash")
        letter = self._pattern[self._at]
        if letter in KINDS:
            self._at += 1
            return "\\" + letter
        if letter in _HEX_DIGITS:
            return self._code(letter)
        if letter in _CONTROLS:
            self._at += 1
            return _CONTROLS[letter]
        if letter.isascii() and letter.isalnum():
            raise self._wrong("is no escape that is supported: anchors and references are not")
        self._at += 1
        return letter

    def _code(self, letter: str) -> str:
        digits = self._pattern[self._at + 1 : self._at + 1 + _HEX_DIGITS[letter]]
        if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX_DIGITS[letter]}}}", digits) or int(digits, 16) > _MAX_CODE:
            raise self._wrong(f"wants {_HEX_DIGITS[letter]} hexadecimal digits of a character behind it")
        self._at += 1 + len(digits)
        return chr(int(digits, 16))

    def _one(self, char: str) -> CharSet:
        return CharSet(((ord(char), ord(char)),), ignores_case=self._ignores_case)

    def _set_flags(self, flags: str) -> None:
        self._ignores_case |= "i" in flags
        self._dot_is_any |= "s" in flags

    def _takes(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _wrong(self, what: str) -> InvalidRequest:
        shown = self._pattern[self._at : self._at + 1]
        return InvalidRequest(f"has {shown!r} at character {self._at + 1}, which {what}")


def _incomplete(what: str) -> InvalidRequest:
    return InvalidRequest(f"is not complete: {what}")
