"""Two versions of the code understand each other's messages: they meet in a fleet that is upgraded.

A field may be added to a message or record at its end, with a default that means what was meant before there
was the field. It goes both ways: who does not get it takes the default, and who does not know it leaves it
out and says so once in its log. Fields at the end that have their defaults are not sent at all. A column that
is added to a message of columns is empty where the sender does not know it.

What is asked for is never computed without a part that somebody has set: the records of `ASKS_THAT_DECIDE`,
and all records in them, are refused by name where they have a field more than the receiver knows.

A message of a new type is refused by name where it is not known: its sender has to do without an answer. A
word that is added to a vocabulary (`finish`, `reason`, a state) is new to older receivers, who have to have
been told before what to do with one that they do not know.

Everything else is a break: a field that is removed, renamed, moved, of another type, with another default, or
that means something else than it did. Then MEANING_VERSION is raised, each side refuses the other's messages
by name and with both versions, and a fleet cannot be upgraded instance by instance. A message of a new name
beside the old one mostly does it, too.

`shared/messages/wire.json` is the record of what is on the wire. A change of any message fails a test until
it is recorded, and one that breaks the rule cannot be recorded under the same MEANING_VERSION.
"""

from __future__ import annotations

from shared.messages.adapters import AdapterId
from shared.messages.citing import CiteAnswer
from shared.messages.preprocessing import Detokenize, Embed, GetTokenBytes, RerankTexts, Retrieve, Tokenize
from shared.messages.response_cache import LookUpResponse, ResponseKey
from shared.messages.routing import Open
from shared.sampling.parameters import SamplingParams

MEANING_VERSION = 6
"""The version of what the messages mean, which each of them carries: raised by a break of the rule alone."""

ASKS_THAT_DECIDE: frozenset[type[object]] = frozenset(
    {
        AdapterId,
        CiteAnswer,
        Detokenize,
        Embed,
        GetTokenBytes,
        LookUpResponse,
        Open,
        RerankTexts,
        ResponseKey,
        Retrieve,
        SamplingParams,
        Tokenize,
    }
)
"""The records that say what an answer is to be: half understood they would be answered with another one."""
