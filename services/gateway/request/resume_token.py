"""Make and read the tokens by which a client goes on with its stream at another gateway. Pure.

A token names the request, and when it ends; a digest keyed with the fleet's key ties it to its owner's API
key and to what was asked. Any gateway of the fleet can read it, nobody else can make one.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

from protos.penstock.v1 import inference_pb2 as pb
from shared.blocks.block_hash import fleet_key_bytes
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import InvalidRequest
from shared.files.api_key_file import ApiKey
from shared.messages import NO_THINKING, PromptThinking

MAX_TOKEN_CHARS = 512
"""The longest token of a stream; ours have about 60."""
MAX_RESUMES = 8
"""A stream can be gone on with so often: what it draws again is not counted again."""
TAG_BYTES = 16
_PERSON = b"penstock.resume"
_NAME = r"[A-Za-z0-9._-]{1,200}"
_FLAGS = r"(?:[0-9]{1,15}(?:\.[0-9]{1,15}){0,31}~)?"
_ID = r"(?:-1|[0-9]{1,10})"
_THINKING = rf"(?:[a-z]{{1,16}}\.[01]\.{_ID}\.{_ID}\.[0-9a-f]{{1,16}}(?:\.[0-9]{{1,10}}){{0,8}}~)?"
_TOKEN = re.compile(
    rf"({_NAME})~({_NAME})~([0-9a-f]{{1,16}})~([0-9])~({_FLAGS})({_THINKING})([A-Za-z0-9_-]{{22}})"
)
_WRONG = (
    "the resume token is none of this key and request: send the one of the stream's last PromptInfo, with "
    "the API key and the request that it began with"
)


@dataclass(frozen=True, slots=True)
class StreamThinking:
    """The way in which the text of a stream is read: `how` its model thinks, without what would close that,
    and the special tokens `shown_ids` that stand in the text. `until_unix_us`: when the thinking is closed, 0
    for never."""

    how: PromptThinking = NO_THINKING
    shown_ids: tuple[int, ...] = ()
    until_unix_us: int = 0

    def told(self) -> str:
        """Return it as a part of a token, "" for a model that does not think."""
        how = self.how
        if not how.format:
            return ""
        ids = "".join(f".{each}" for each in self.shown_ids)
        return f"{how.format}.{how.begun:d}.{how.opening_id}.{how.closing_id}.{self.until_unix_us:x}{ids}"

    @classmethod
    def read(cls, told: str) -> Self:
        """Read what `told` has made."""
        if not told:
            return cls()
        name, begun, opening, closing, until, *ids = told.split(".")
        how = PromptThinking(name, begun == "1", opening_id=int(opening), closing_id=int(closing))
        return cls(how, tuple(map(int, ids)), int(until, 16))


UNREAD = StreamThinking()


@dataclass(frozen=True, slots=True)
class ResumeClaim:
    """The stream that a token names: its request now, the one that it began as, and when it ends.

    `received_tokens` have come to the client, who says so. `resumes`: how often it was gone on with. `flags`:
    the numbers of the changes of settings that it has. `thinking`: how its text is read.
    """

    request_id: str
    stream_id: str
    ends_unix_us: int
    resumes: int
    received_tokens: int
    flags: tuple[int, ...] = ()
    thinking: StreamThinking = UNREAD

    def deadline(self, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        return Deadline.after((self.ends_unix_us - clock.unix_us()) / 1e6, clock)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The place from which a client wants to go on. `received_chars` of the text have come, where its edge
    counts them."""

    token: str
    received_tokens: int
    received_chars: int = 0


@dataclass(frozen=True, slots=True)
class ResumeTokens:
    """The tokens of one request: `owner` has asked for what `request_digest` is of."""

    fleet_key: bytes = field(repr=False)
    owner: bytes
    request_digest: bytes

    @classmethod
    def of(cls, fleet_key: str, key: ApiKey, message: pb.GenerateRequest, cache_salt: str) -> ResumeTokens:
        """`fleet_key` as the configuration has it."""
        owner = f"{key.tenant}\0{key.hash}".encode()
        return cls(fleet_key_bytes(fleet_key), owner, _digest(message, cache_salt))

    def make(
        self,
        request_id: str,
        ends_unix_us: int,
        before: ResumeClaim | None = None,
        flags: Sequence[str] = (),
        thinking: StreamThinking = UNREAD,
    ) -> str:
        """Return the token of a request, which goes on with the stream `before`; "" where that may not be
        gone on with once more. `flags` are the versions of the changes that it has,
        `thinking` is how its text is read."""
        resumes = 0 if before is None else before.resumes + 1
        if resumes >= MAX_RESUMES:
            return ""
        stream_id = request_id if before is None else before.stream_id
        named = f"{request_id}~{stream_id}~{ends_unix_us:x}~{resumes}"
        if flags:
            named += f"~{'.'.join(version.partition('@')[0] for version in flags)}"
        if told := thinking.told():
            named += f"~{told}"
        return f"{named}~{self._tag(named)}"

    def read(self, point: ResumePoint) -> ResumeClaim:
        """Raises InvalidRequest for a token that was not made for this owner and request."""
        found = _TOKEN.fullmatch(point.token) if len(point.token) <= MAX_TOKEN_CHARS else None
        if found is None:
            raise InvalidRequest(_WRONG)
        request_id, stream_id, ends, resumes, flags, thinking, tag = found.groups()
        if not hmac.compare_digest(tag, self._tag(point.token[: -len(tag) - 1])):
            raise InvalidRequest(_WRONG)
        return ResumeClaim(
            request_id,
            stream_id,
            int(ends, 16),
            int(resumes),
            point.received_tokens,
            tuple(map(int, flags.removesuffix("~").split("."))) if flags else (),
            StreamThinking.read(thinking.removesuffix("~")),
        )

    def _tag(self, named: str) -> str:
        parts = (named.encode(), self.owner, self.request_digest)
        hasher = blake2b(digest_size=TAG_BYTES, key=self.fleet_key, person=_PERSON)
        for part in parts:
            hasher.update(len(part).to_bytes(8, "little") + part)
        return urlsafe_b64encode(hasher.digest()).decode().rstrip("=")


def _digest(message: pb.GenerateRequest, cache_salt: str) -> bytes:
    """Name what is asked for: all but what differs each time that it is sent."""
    asked = pb.GenerateRequest()
    asked.CopyFrom(message)
    for name in ("resumable", "client_sent_unix_us", "deadline_ms", "ttft_deadline_ms"):
        asked.ClearField(name)
    said = asked.SerializeToString(deterministic=True)
    return blake2b(
        said, digest_size=TAG_BYTES, salt=blake2b(cache_salt.encode(), digest_size=16).digest()
    ).digest()
