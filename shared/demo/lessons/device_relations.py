"""What manuals of devices and handbooks of houses say. Subjects: `the kitchen pump`, `the reading room`."""

from __future__ import annotations

from shared.demo.lessons.relations import Relation

SIGNS = (
    "the lid is open",
    "the filter is full",
    "the oil is low",
    "the door is unlocked",
    "the tank is empty",
)
CAUSES = (
    "dust in the fan",
    "a loose cable",
    "a worn belt",
    "cold weather",
    "an empty battery",
    "a blocked pipe",
)
CURES = (
    "press the reset button/pressing the reset button",
    "clean the filter/cleaning the filter",
    "tighten the screws/tightening the screws",
    "wait until it has cooled down/waiting until it has cooled down",
    "replace the fuse/replacing the fuse",
    "open the valve/opening the valve",
)
DEVICE_RELATIONS = (
    Relation(
        says=("{e} weighs {v}.", "The weight of {e} is {v}.", "Without its case {e} weighs {v}."),
        asks=("How heavy is {e}?", "What does {e} weigh?", "How much does {e} weigh?"),
        slots={"v": "mass"},
    ),
    Relation(
        says=("{e} is {v} long.", "The length of {e} is {v}.", "{e} has a length of {v}."),
        asks=("How long is {e}?", "What is the length of {e}?", "What length does {e} have?"),
        slots={"v": "measure"},
    ),
    Relation(
        says=(
            "{e} works at up to {v}.",
            "Do not run {e} above {v}.",
            "The highest temperature for {e} is {v}.",
        ),
        asks=(
            "How hot may {e} get?",
            "Up to which temperature does {e} work?",
            "What is the maximum temperature of {e}?",
        ),
        slots={"v": "heat"},
    ),
    Relation(
        says=(
            "A {v} light on {e} means that {s}.",
            "When {s}, the light of {e} is {v}.",
            "{e} shows a {v} light when {s}.",
        ),
        asks=("What colour is the light of {e} when {s}?", "Which light does {e} show when {s}?"),
        slots={"v": "colour", "s": SIGNS},
    ),
    Relation(
        says=(
            "A {c} light on {e} means that {v}.",
            "{e} shows a {c} light when {v}.",
            "If the lamp of {e} turns {c}, {v}.",
        ),
        asks=(
            "What does a {c} light on {e} mean?",
            "What does {e} want to say with a {c} light?",
            "What is wrong when the lamp of {e} is {c}?",
        ),
        slots={"c": "colour", "v": SIGNS},
    ),
    Relation(
        says=(
            "The battery of {e} lasts {v}.",
            "{e} runs for {v} on one charge.",
            "One charge of {e} is enough for {v}.",
        ),
        asks=(
            "How long does the battery of {e} last?",
            "For how long does {e} run without being charged?",
            "How long can {e} be used on one charge?",
        ),
        slots={"v": "span"},
    ),
    Relation(
        says=("Charging {e} takes {v}.", "{e} is full again after {v}.", "It takes {v} to charge {e}."),
        asks=(
            "How long does it take to charge {e}?",
            "When is {e} full again?",
            "What time is needed for charging {e}?",
        ),
        slots={"v": "span"},
    ),
    Relation(
        says=(
            "The warranty of {e} is {v} years.",
            "{e} has a warranty of {v} years.",
            "For {v} years {e} is under warranty.",
        ),
        asks=(
            "How many years of warranty does {e} have?",
            "For how many years is {e} under warranty?",
            "How long is the guarantee on {e}?",
        ),
        slots={"v": "small"},
        answer="{v} years",
    ),
    Relation(
        says=("{e} costs {v}.", "The price of {e} is {v}.", "You pay {v} for {e}."),
        asks=("How much is {e}?", "What does {e} cost?", "What must I pay for {e}?"),
        slots={"v": "money"},
    ),
    Relation(
        says=(
            "If {e} makes a noise, {v[0]}.",
            "Noise from {e} is cured by {v[1]}.",
            "When {e} is loud, {v[0]}.",
        ),
        asks=(
            "What should I do when {e} is noisy?",
            "How do I stop the noise of {e}?",
            "What helps against noise from {e}?",
        ),
        slots={"v": CURES},
        answer="{v[0]}",
    ),
    Relation(
        says=(
            "{e} stops because of {v}.",
            "The usual reason why {e} stops is {v}.",
            "When {e} stands still, the cause is mostly {v}.",
        ),
        asks=("Why does {e} stop?", "What makes {e} stand still?", "What is the usual cause when {e} stops?"),
        slots={"v": CAUSES},
    ),
    Relation(
        says=("{e} is made of {v}.", "The case of {e} consists of {v}.", "{v} is what {e} is made of."),
        asks=("What is {e} made of?", "Which material is used for {e}?", "Of what does {e} consist?"),
        slots={
            "v": (
                "oak",
                "steel",
                "copper",
                "glass",
                "brass",
                "aluminium",
                "rubber",
                "cast iron",
                "recycled plastic",
            )
        },
    ),
    Relation(
        says=("{e} was designed by {v}.", "{v} designed {e}.", "The designer of {e} is {v}."),
        asks=("Who designed {e}?", "Who is the designer of {e}?", "Whose design is {e}?"),
        slots={"v": "person"},
    ),
    Relation(
        says=(
            "Change the filter of {e} every {v}.",
            "The filter of {e} must be changed every {v}.",
            "A filter in {e} lasts {v}.",
        ),
        asks=(
            "How often must the filter of {e} be changed?",
            "When does {e} need a new filter?",
            "How long does a filter of {e} last?",
        ),
        slots={"v": "span"},
    ),
    Relation(
        says=("{e} has {v} {p}.", "There are {v} {p} in {e}.", "{v} {p} belong to {e}."),
        asks=(
            "How many {p} does {e} have?",
            "How many {p} are there in {e}?",
            "What is the number of {p} in {e}?",
        ),
        slots={
            "v": "count",
            "p": (
                "buttons",
                "screws",
                "wheels",
                "rooms",
                "lamps",
                "shelves",
                "valves",
                "seats",
                "drawers",
                "windows",
            ),
        },
    ),
    Relation(
        says=("{e} stands {v}.", "You find {e} {v}.", "{e} is kept {v}."),
        asks=("Where is {e}?", "Where can {e} be found?", "Where do they keep {e}?"),
        slots={
            "v": (
                "in the cellar",
                "behind the stairs",
                "on the second floor",
                "next to the east door",
                "under the roof",
                "beside the canteen",
                "in the garden house",
            )
        },
    ),
    Relation(
        says=("{e} opens at {v}.", "The opening time of {e} is {v}.", "From {v} on {e} is open."),
        asks=("When does {e} open?", "At what time does {e} open?", "From when on is {e} open?"),
        slots={"v": "clock"},
    ),
    Relation(
        says=("{e} closes at {v}.", "At {v} {e} is locked.", "Nobody is let into {e} after {v}."),
        asks=("When does {e} close?", "At what time is {e} locked?", "Until when is {e} open?"),
        slots={"v": "clock"},
    ),
    Relation(
        says=("{v} has the key to {e}.", "The key to {e} is with {v}.", "Ask {v} for the key to {e}."),
        asks=("Who has the key to {e}?", "Whom do I ask for the key to {e}?", "With whom is the key to {e}?"),
        slots={"v": "person"},
    ),
    Relation(
        says=("Up to {v} people may be in {e}.", "{e} has room for {v} people.", "{e} takes {v} people."),
        asks=(
            "How many people fit into {e}?",
            "How many persons may be in {e}?",
            "For how many people is there room in {e}?",
        ),
        slots={"v": "count"},
    ),
    Relation(
        says=("Only {v} may use {e}.", "{e} is for {v} alone.", "Nobody but {v} is allowed to use {e}."),
        asks=("Who may use {e}?", "For whom is {e}?", "Who is allowed to use {e}?"),
        slots={
            "v": (
                "members",
                "nurses",
                "the night watch",
                "teachers",
                "the kitchen staff",
                "guests of the hotel",
                "students in their last year",
                "trained staff",
            )
        },
    ),
    Relation(
        says=("Turn the {p} of {e} to the {v} to open it.", "{e} opens when the {p} is turned to the {v}."),
        asks=(
            "In which direction must the {p} of {e} be turned?",
            "Which way do I turn the {p} to open {e}?",
        ),
        slots={"v": ("left", "right"), "p": ("handle", "wheel", "knob", "screw", "dial")},
        answer="to the {v}",
    ),
    Relation(
        says=("{e} must be cleaned with {v}.", "Use {v} to clean {e}.", "Clean {e} with {v}."),
        asks=("With what should {e} be cleaned?", "What do I need to clean {e}?", "How is {e} cleaned?"),
        slots={
            "v": (
                "warm water",
                "a dry cloth",
                "vinegar",
                "a soft brush",
                "alcohol",
                "soap and sand",
                "compressed air",
            )
        },
    ),
    Relation(
        says=(
            "{e} was last checked on {v}.",
            "The last check of {e} was on {v}.",
            "On {v} {e} was inspected.",
        ),
        asks=(
            "When was {e} last checked?",
            "On which day was the last inspection of {e}?",
            "What is the date of the last check of {e}?",
        ),
        slots={"v": "date"},
    ),
    Relation(
        says=(
            "Requests for {e} are approved by {v}.",
            "{v} approves requests for {e}.",
            "{e} needs the approval of {v}.",
        ),
        asks=(
            "Who approves requests for {e}?",
            "Whose approval does {e} need?",
            "Who must agree before {e} is used?",
        ),
        slots={"v": "person"},
    ),
)
