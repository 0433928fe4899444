"""The commands of a conversation, which begin with a slash, and their arguments."""

from __future__ import annotations

from dataclasses import dataclass

from services.cli.ask.ask_request import SCALAR_OPTIONS

MARK = "/"
HELP = """\
/model [NAME]      which models there are, or the one that answers from now on
/system [TEXT|off] the system message, or a new one
/set [NAME VALUE]  sampling of the next answers, such as /set temperature 0;
                   a VALUE of - is the model's own
/retrieve on|off   answer from the indexed folder, or without it
/retry             answer the last question once more
/timeline          where the time of the last answer went
/save FILE         keep the conversation in a file
/load FILE         go on with a conversation that was kept
/clear             forget the conversation
/help              this
/quit              leave; so does Ctrl-D
//text             say a text that begins with a slash
Ctrl-C             cancel the answer, or clear the line; the conversation stays
\"\"\"                begins and ends a message of several lines; a pasted one
                   needs none"""
UNSET = "-"


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """`rest` is what stands behind the name, as it was typed."""

    name: str
    rest: str

    @classmethod
    def of(cls, text: str) -> ChatCommand:
        name, _, rest = text.partition(" ")
        return cls(name, rest.strip())


def sampling_name(name: str) -> str:
    """Return the name of a sampling parameter. Raises ValueError for another word."""
    if name not in SCALAR_OPTIONS:
        raise ValueError(f"there is no {name}; there are {', '.join(SCALAR_OPTIONS)}")
    return name


def sampling_value(name: str, text: str) -> int | float | bool:
    """Return the value of a sampling parameter. Raises ValueError with a sentence."""
    definition = SCALAR_OPTIONS[sampling_name(name)]
    if definition.bounds is None:
        if text not in ("on", "off"):
            raise ValueError(f"{name} is on or off")
        return text == "on"
    value: int | float
    try:
        value = int(text) if definition.bounds.integer else float(text)
    except ValueError:
        value = float("nan")
    if not definition.bounds.hold(value):
        raise ValueError(f"{name} is {text}: it is {definition.bounds}")
    return value
