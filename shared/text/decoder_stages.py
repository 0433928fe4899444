"""The decoders of tokenizer.json as stages that work token by token.

A tokenizer's decoder is a chain of functions from a list of token strings to a list of token
strings. Each stage here does the same for an endless list: `push` takes one token and returns what
can no longer change, `finish` returns the rest. Pushing all tokens and finishing gives exactly what
the `tokenizers` library gives for the whole list.

Most stages look at one token at a time, and there the library itself is asked. Only those with a
memory are written out: ByteLevel and ByteFallback (characters that span tokens), Fuse + Strip (the
space in front of a text), BPEDecoder (the last token differs). Anything else is collected and
decoded at the end: late, but exact.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

_IN_FRONT = "a"
"""A text, so that a decoder does not take a token for the first of it."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

LibraryDecode = Callable[[list[str]], str]


class DecoderStage(Protocol):
    @property
    def settled(self) -> bool:
        """Return whether nothing of what was pushed can change what comes of later tokens: any two such
        moments are
        alike."""

    def push(self, token: str) -> Iterable[str]:
        """The tokens that are final now that `token` has come."""

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:
        """The rest. `drop_incomplete`: leave out bytes at the end that could still become a character."""


class TokenWise:
    """A stage that changes each token for itself; some treat the first one differently."""

    def __init__(self, decode: LibraryDecode) -> None:
        self._decode = decode
        self._first = True

    @property
    def settled(self) -> bool:
        return not self._first

    def push(self, token: str) -> Iterable[str]:
        if self._first:
            self._first = False
            return (self._decode([token]),)
        return (self._decode(["", token]),)

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:  # noqa: ARG002 - the signature of a stage
        return ()


class LastDiffers:
    """A stage that changes each token for itself but the last one differently: one token is held."""

    def __init__(self, decode: LibraryDecode) -> None:
        self._decode = decode
        self._held: str | None = None

    @property
    def settled(self) -> bool:
        return False

    def push(self, token: str) -> Iterable[str]:
        held, self._held = self._held, token
        return () if held is None else (self._decode([held, ""]),)

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:  # noqa: ARG002 - the signature of a stage
        return () if self._held is None else (self._decode([self._held]),)


class JoinWithSpaces:
    """Joins tokens with spaces, as a tokenizer without a decoder does."""

    def __init__(self) -> None:
        self._first = True

    @property
    def settled(self) -> bool:
        return not self._first

    def push(self, token: str) -> Iterable[str]:
        if self._first:
            self._first = False
            return (token,)
        return (" ", token)

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:  # noqa: ARG002 - the signature of a stage
        return ()


class ByteLevel:
    """Every character of a token stands for a byte; the bytes of all tokens together are UTF-8."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def settled(self) -> bool:
        return not self._utf8.getstate()[0]

    def push(self, token: str) -> Iterable[str]:
        text = self._utf8.decode(_token_bytes(token))
        if _hopeless(self._utf8.getstate()[0]):
            return (text, self._utf8.decode(b"", final=True))
        return (text,)

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:
        return () if drop_incomplete else (self._utf8.decode(b"", final=True),)


class ByteFallback:
    """Tokens like <0xE2> are bytes; an unbroken run of them is one text, or all of it is invalid.

    So the text of a run is final when the run ends, unless it is known to be invalid already: then
    every byte of it has become one replacement character.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")
        self._text = ""
        self._run_bytes = 0
        self._invalid = False

    @property
    def settled(self) -> bool:
        return not self._run_bytes

    def push(self, token: str) -> Iterable[str]:
        byte = fallback_byte(token)
        if byte is None:
            return (*self._end_run(drop_incomplete=False), token)
        self._run_bytes += 1
        if self._invalid:
            return (REPLACEMENT,)
        try:
            self._text += self._utf8.decode(bytes((byte,)))
            self._invalid = _hopeless(self._utf8.getstate()[0])
        except UnicodeDecodeError:
            self._invalid = True
        return (REPLACEMENT,) * self._run_bytes if self._invalid else ()

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:
        return self._end_run(drop_incomplete=drop_incomplete)

    def _end_run(self, *, drop_incomplete: bool) -> tuple[str, ...]:
        if not self._run_bytes:
            return ()
        incomplete, _ = self._utf8.getstate()
        if self._invalid:
            rest: tuple[str, ...] = ()
        elif incomplete and not drop_incomplete:
            rest = (REPLACEMENT,) * self._run_bytes
        else:
            rest = (self._text,)
        self._utf8.reset()
        self._text = ""
        self._run_bytes = 0
        self._invalid = False
        return rest


class StripStart:
    """Takes `character` up to `count` times from the front of the fused text."""

    def __init__(self, character: str, count: int) -> None:
        self._character = character
        self._left = count

    @property
    def settled(self) -> bool:
        return not self._left

    def push(self, token: str) -> Iterable[str]:
        while self._left and token:
            if token[0] != self._character:
                self._left = 0
                break
            token = token[1:]
            self._left -= 1
        return (token,)

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:  # noqa: ARG002 - the signature of a stage
        return ()


class Collect:
    """A stage that has to see the whole list: exact, but nothing streams."""

    def __init__(self, decode: LibraryDecode) -> None:
        self._decode = decode
        self._tokens: list[str] = []

    @property
    def settled(self) -> bool:
        return False

    def push(self, token: str) -> Iterable[str]:
        self._tokens.append(token)
        return ()

    def finish(self, *, drop_incomplete: bool) -> Iterable[str]:  # noqa: ARG002 - the signature of a stage
        return (self._decode(self._tokens),) if self._tokens else ()


DecoderStageFactory = Callable[[], DecoderStage]


def stage_factories(decoder: dict[str, Any] | None) -> tuple[DecoderStageFactory, ...]:
    """Return how to make the stages for one stream, from the "decoder" entry of tokenizer.json."""
    if decoder is None:
        return (JoinWithSpaces,)
    factories: list[DecoderStageFactory] = []
    specs = _flatten(decoder)
    fused = False
    for index, spec in enumerate(specs):
        kind = spec["type"]
        per_token = kind in ("Replace", "Metaspace", "WordPiece") or (kind == "Strip" and not spec["stop"])
        if kind == "Fuse":
            fused = True
        elif fused and kind == "Strip" and per_token:
            factories.append(_stripping(spec["content"], spec["start"]))
        elif fused or (kind not in ("ByteLevel", "ByteFallback", "BPEDecoder") and not per_token):
            fuse = [{"type": "Fuse"}] if fused else []
            return (*factories, _library_stage(Collect, fuse + specs[index:]))
        elif kind == "ByteLevel":
            factories.append(ByteLevel)
            fused = True
        elif kind == "ByteFallback":
            factories.append(ByteFallback)
        else:
            factories.append(_library_stage(LastDiffers if kind == "BPEDecoder" else TokenWise, [spec]))
    return tuple(factories)


_FALLBACK_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
"""The library parses the number as Rust does, with a sign."""


def fallback_byte(token: str) -> int | None:
    """The byte that a token like <0x0A> stands for, None for any other token."""
    match = _FALLBACK_TOKEN.fullmatch(token)
    return None if match is None else int(match[1], 16)


def _hopeless(incomplete: bytes) -> bool:
    """The beginning of a surrogate, which Python's decoder keeps although no byte can make it a character."""
    return len(incomplete) == 2 and incomplete[0] == 0xED and incomplete[1] >= 0xA0


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [spec for inner in decoder["decoders"] for spec in _flatten(inner)]


def _stripping(character: str, count: int) -> DecoderStageFactory:
    return lambda: StripStart(character, count)


def _library_stage(
    stage: Callable[[LibraryDecode], DecoderStage], specs: list[dict[str, Any]]
) -> DecoderStageFactory:
    """`stage` around the library's own decoder for `specs`."""
    blank = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
        "decoder": {"type": "Sequence", "decoders": specs},
    }
    decode: LibraryDecode = Tokenizer.from_str(json.dumps(blank)).decoder.decode
    return lambda: stage(decode)


def plain_text(token: str, factories: Sequence[DecoderStageFactory]) -> str | None:
    """Return what `token` always gives where the stages are settled; None where they are not so after it."""
    stages = [make() for make in factories]
    run_stages(stages, [_IN_FRONT])
    if not is_settled(stages):
        return None
    text = run_stages(stages, [token])
    return text if is_settled(stages) else None


def is_settled(stages: Iterable[DecoderStage]) -> bool:
    return all(stage.settled for stage in stages)


def run_stages(stages: Sequence[DecoderStage], tokens: Iterable[str]) -> str:
    """The text that became final with `tokens`."""
    for stage in stages:
        tokens = [out for token in tokens for out in stage.push(token)]
    return "".join(tokens)


def token_bytes(token: str, factories: Sequence[DecoderStageFactory]) -> bytes:
    """Return what `token` adds to a text in front of it."""
    stages = [make() for make in factories]
    if any(isinstance(stage, ByteLevel) for stage in stages):
        return _token_bytes(token)
    byte = fallback_byte(token) if any(isinstance(stage, ByteFallback) for stage in stages) else None
    if byte is not None:
        return bytes((byte,))
    tokens: list[str] = [_IN_FRONT, token]
    for stage in stages:
        tokens = [out for each in tokens for out in stage.push(each)] + list(
            stage.finish(drop_incomplete=False)
        )
    return "".join(tokens).removeprefix(_IN_FRONT).encode()


def _byte_alphabet() -> dict[str, int]:
    """Return how byte-level tokenizers write bytes: printable Latin-1 as itself, the rest from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _token_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an added token with a character outside the alphabet stands for itself
        return token.encode()
