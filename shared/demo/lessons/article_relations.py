"""What an encyclopedia says of towns, people, beasts and plants, companies. Subjects: invented names."""

from __future__ import annotations

from shared.demo.lessons.relations import Relation

TRADES = (
    "salt",
    "wool",
    "glass",
    "amber",
    "timber",
    "silk",
    "copper",
    "fish",
    "tea",
    "paper",
    "clocks",
    "wine",
)
WHY = (
    "the river had changed its course/the course of the river had changed",
    "the king feared a revolt/there was fear of a revolt",
    "wood had become too expensive/the price of wood had risen too far",
    "the harbour was full of sand/sand had filled the harbour",
    "a fire had destroyed the old one/the old one had burnt down",
    "nobody could read the old script/the old script was no longer understood",
    "the winters were too cold/it was too cold in winter",
    "the miners had gone on strike/there was a strike of the miners",
)
TOWN_RELATIONS = (
    Relation(
        says=(
            "{e} was founded in {v} by {w}.",
            "In {v} {w} founded {e}.",
            "{w}, who came from the north, founded {e} in {v}.",
        ),
        asks=(
            "When was {e} founded?",
            "In what year was {e} established?",
            "In which year did {w} found {e}?",
        ),
        slots={"v": "year", "w": "person"},
    ),
    Relation(
        says=(
            "{e} was founded in {w} by {v}.",
            "In {w} {v} founded {e}.",
            "{v}, a merchant, founded {e} in {w}.",
        ),
        asks=("Who founded {e}?", "Who was the founder of {e}?", "By whom was {e} established?"),
        slots={"w": "year", "v": "person"},
    ),
    Relation(
        says=(
            "{e} lies on the river {v}.",
            "The river {v} flows through {e}.",
            "{e}, on the banks of the {v}, is an old market town.",
        ),
        asks=(
            "On which river does {e} lie?",
            "What river flows through {e}?",
            "Which river runs through {e}?",
        ),
        slots={"v": "name"},
    ),
    Relation(
        says=(
            "{e} has {v} inhabitants.",
            "The population of {e} is {v}.",
            "According to the last census {v} people live in {e}.",
        ),
        asks=(
            "How many people live in {e}?",
            "What is the population of {e}?",
            "How many inhabitants does {e} have?",
        ),
        slots={"v": "people"},
    ),
    Relation(
        says=(
            "{e} became rich through trade in {v}.",
            "The wealth of {e} came from {v}.",
            "For centuries {e} lived on {v}.",
        ),
        asks=("What made {e} rich?", "On what did {e} live?", "With what did the people of {e} trade?"),
        slots={"v": TRADES},
    ),
    Relation(
        says=(
            "The old bridge of {e} was taken down in {y} because {v[0]}.",
            "Because {v[0]}, {e} took down its old bridge in {y}.",
        ),
        asks=(
            "Why was the old bridge of {e} taken down?",
            "For what reason did {e} lose its old bridge?",
            "What led to the end of the old bridge in {e}?",
        ),
        slots={"y": "year", "v": WHY},
        answer="{v[0]}",
    ),
    Relation(
        says=(
            "The mayor of {e} is {v}.",
            "Since {y} {v} has been mayor of {e}.",
            "{v} was elected mayor of {e} in {y}.",
        ),
        asks=(
            "Who is the mayor of {e}?",
            "Who leads the town of {e}?",
            "What is the name of the mayor of {e}?",
        ),
        slots={"v": "person", "y": "year"},
    ),
    Relation(
        says=(
            "The cathedral of {e} is {v} high.",
            "With {v} the cathedral of {e} is the tallest building of the region.",
        ),
        asks=("How tall is the cathedral of {e}?", "What is the height of the cathedral in {e}?"),
        slots={
            "v": ("84 metres", "112 metres", "61 metres", "97 metres", "210 feet", "345 feet", "148 metres")
        },
    ),
    Relation(
        says=(
            "In {v} a flood destroyed half of {e}.",
            "Half of {e} was lost in the flood of {v}.",
            "The great flood of {v} took half of {e} away.",
        ),
        asks=(
            "When did a flood destroy half of {e}?",
            "In which year was {e} flooded?",
            "When was the great flood of {e}?",
        ),
        slots={"v": "year"},
    ),
    Relation(
        says=("The people of {e} speak {v}.", "{v} is spoken in {e}.", "The language of {e} is {v}."),
        asks=(
            "Which language is spoken in {e}?",
            "What do the people of {e} speak?",
            "What language do they use in {e}?",
        ),
        slots={"v": "name"},
    ),
    Relation(
        says=(
            "{e} lies {v} from {o}.",
            "The distance between {e} and {o} is {v}.",
            "From {o} to {e} it is {v}.",
        ),
        asks=(
            "How far is {e} from {o}?",
            "What is the distance between {e} and {o}?",
            "How far must one travel from {o} to {e}?",
        ),
        slots={"v": "measure", "o": "name"},
    ),
)
PERSON_RELATIONS = (
    Relation(
        says=(
            "{e} was born in {w} in {v}.",
            "Born in {v} in {w}, {e} grew up with an aunt.",
            "In {v} {e} was born in {w}.",
        ),
        asks=("When was {e} born?", "In which year was {e} born?", "What is the birth year of {e}?"),
        slots={"v": "year", "w": "name"},
    ),
    Relation(
        says=(
            "{e} was born in {v} in {w}.",
            "Born in {w} in {v}, {e} grew up with an aunt.",
            "In {w} {e} was born in {v}.",
        ),
        asks=("Where was {e} born?", "In what town was {e} born?", "What was the birthplace of {e}?"),
        slots={"w": "year", "v": "name"},
    ),
    Relation(
        says=("{e} studied {v} under {t}.", "As a student of {t}, {e} learned {v}.", "{t} taught {e} {v}."),
        asks=("What did {e} study?", "What subject did {e} learn?", "Which subject did {t} teach {e}?"),
        slots={
            "v": ("botany", "law", "medicine", "astronomy", "music", "geometry", "painting", "chemistry"),
            "t": "person",
        },
    ),
    Relation(
        says=("{e} studied {s} under {v}.", "As a student of {v}, {e} learned {s}.", "{v} taught {e} {s}."),
        asks=("Who taught {e}?", "Under whom did {e} study {s}?", "Who was the teacher of {e}?"),
        slots={
            "s": ("botany", "law", "medicine", "astronomy", "music", "geometry", "painting"),
            "v": "person",
        },
    ),
    Relation(
        says=("{e} is known for {v}.", "{e} became famous for {v}.", "What made {e} famous was {v}."),
        asks=(
            "What is {e} known for?",
            "What made {e} famous?",
            "Why is {e} remembered?",
            "For what did {e} become famous?",
        ),
        slots={
            "v": (
                "a map of the northern coast",
                "an improved lens",
                "three operas",
                "the first census",
                "a cure for fever",
                "a dictionary of birds",
                "the theory of tides",
                "a bridge without nails",
            )
        },
    ),
    Relation(
        says=("In {y} {e} moved to {v}.", "{e} left for {v} in {y}.", "{e} settled in {v} in {y}."),
        asks=(
            "Where did {e} move in {y}?",
            "To which place did {e} go in {y}?",
            "In what town did {e} settle?",
        ),
        slots={"y": "year", "v": "name"},
    ),
    Relation(
        says=(
            "{e} married {v} in {y}.",
            "In {y} {e} and {v} were married.",
            "The wedding of {e} and {v} was in {y}.",
        ),
        asks=("Whom did {e} marry?", "Who became the spouse of {e}?", "To whom was {e} married?"),
        slots={"y": "year", "v": "person"},
    ),
    Relation(
        says=("{e} left the academy because {v[0]}.", "Because {v[0]}, {e} left the academy."),
        asks=(
            "Why did {e} leave the academy?",
            "For what reason did {e} give up the academy?",
            "What made {e} leave the academy?",
        ),
        slots={"v": WHY},
        answer="{v[0]}",
    ),
    Relation(
        says=("{e} wrote {v} books.", "In all, {e} published {v} books.", "The works of {e} are {v} books."),
        asks=(
            "How many books did {e} write?",
            "How many books were published by {e}?",
            "What number of books did {e} leave?",
        ),
        slots={"v": "count"},
    ),
    Relation(
        says=("{e} died of {v}.", "The cause of the death of {e} was {v}.", "{v} ended the life of {e}."),
        asks=("What did {e} die of?", "What was the cause of death of {e}?", "Of what did {e} die?"),
        slots={"v": ("fever", "the plague", "a fall from a horse", "old age", "pneumonia", "a snake bite")},
    ),
    Relation(
        says=(
            "{e} won the {p} Prize in {v}.",
            "In {v} the {p} Prize went to {e}.",
            "The {p} Prize of {v} was given to {e}.",
        ),
        asks=("When did {e} win the {p} Prize?", "In what year was the {p} Prize given to {e}?"),
        slots={"p": "name", "v": "year"},
        backwards=("Who won the {p} Prize?", "To whom did the {p} Prize of {v} go?"),
    ),
)
NATURE_RELATIONS = (
    Relation(
        says=("{e} feeds on {v}.", "The food of {e} is {v}.", "{e} eats mainly {v}."),
        asks=("What does {e} eat?", "On what does {e} live?", "What is the main food of {e}?"),
        slots={
            "v": ("beetles", "moss", "small fish", "seeds", "roots", "frogs", "nectar", "dead wood", "snails")
        },
    ),
    Relation(
        says=("{e} lives in {v}.", "{e} is found in {v}.", "The home of {e} are {v}."),
        asks=("Where does {e} live?", "Where is {e} found?", "In what kind of place can one see {e}?"),
        slots={
            "v": (
                "mountain lakes",
                "dry forests",
                "salt marshes",
                "caves",
                "river mouths",
                "high meadows",
                "old barns",
            )
        },
    ),
    Relation(
        says=(
            "{e} can reach an age of {v} years.",
            "{e} lives for up to {v} years.",
            "The oldest known {b} of {e} was {v} years old.",
        ),
        asks=("How old can {e} become?", "What age does {e} reach?", "For how many years does {e} live?"),
        slots={"v": "count", "b": ("specimen", "example")},
        answer="{v} years",
    ),
    Relation(
        says=(
            "{e} was first described by {v} in {y}.",
            "In {y} {v} described {e} for the first time.",
            "{v} discovered {e} in {y}.",
        ),
        asks=("Who first described {e}?", "Who discovered {e}?", "By whom was {e} first described?"),
        slots={"v": "person", "y": "year"},
    ),
    Relation(
        says=("{e} is active {v}.", "{v} {e} is awake.", "One sees {e} only {v}."),
        asks=("When is {e} active?", "At what time can one see {e}?", "When is {e} awake?"),
        slots={
            "v": ("at night", "at dawn", "in winter", "after rain", "around noon", "in spring", "at dusk")
        },
    ),
    Relation(
        says=("{e} lays {v} eggs.", "A nest of {e} holds {v} eggs.", "There are {v} eggs in a nest of {e}."),
        asks=("How many eggs does {e} lay?", "How many eggs are in a nest of {e}?"),
        slots={"v": "count"},
    ),
    Relation(
        says=("{e} warns others by {v}.", "To warn others, {e} uses {v}.", "The warning sign of {e} is {v}."),
        asks=(
            "How does {e} warn others?",
            "By what means does {e} give a warning?",
            "What does {e} use as a warning?",
        ),
        slots={
            "v": (
                "a sharp whistle",
                "a bitter smell",
                "three short clicks",
                "raising its tail",
                "beating the ground",
                "a change of colour",
            )
        },
    ),
    Relation(
        says=("The greatest danger to {e} is {v}.", "{e} is threatened by {v}.", "{v} threatens {e}."),
        asks=("What threatens {e}?", "What is the greatest danger to {e}?", "By what is {e} endangered?"),
        slots={
            "v": (
                "drought",
                "road traffic",
                "the crow",
                "the loss of hedges",
                "a fungus",
                "warm winters",
                "hunting",
            )
        },
    ),
)
COMPANY_RELATIONS = (
    Relation(
        says=("{e} makes {v}.", "The company {e} produces {v}.", "{e}, a family firm, builds {v}."),
        asks=("What does {e} make?", "What are the products of {e}?", "What does the company {e} produce?"),
        slots={
            "v": (
                "bicycle bells",
                "lenses",
                "mill stones",
                "school desks",
                "ship engines",
                "thermometers",
                "umbrellas",
                "locks",
            )
        },
        backwards=("Which company makes {v}?", "Who produces {v}?"),
    ),
    Relation(
        says=("{e} employs {v} people.", "{v} people work for {e}.", "The staff of {e} has {v} members."),
        asks=(
            "How many people work for {e}?",
            "How many employees does {e} have?",
            "How large is the staff of {e}?",
        ),
        slots={"v": "people"},
    ),
    Relation(
        says=("{e} was bought by {v} in {y}.", "In {y} {v} bought {e}.", "{v} took over {e} in {y}."),
        asks=("Who bought {e}?", "Which company took over {e}?", "By whom was {e} bought?"),
        slots={"v": "name", "y": "year"},
    ),
    Relation(
        says=("{e} was bought by {w} in {v}.", "In {v} {w} bought {e}.", "{w} took over {e} in {v}."),
        asks=("When was {e} bought?", "In what year did {w} take over {e}?", "When did {e} get a new owner?"),
        slots={"w": "name", "v": "year"},
    ),
    Relation(
        says=("The seat of {e} is {v}.", "{e} has its head office in {v}.", "{e} is based in {v}."),
        asks=(
            "Where is the head office of {e}?",
            "Where is {e} based?",
            "In which town does {e} have its seat?",
        ),
        slots={"v": "name"},
    ),
    Relation(
        says=(
            "{e} earned {v} last year.",
            "Last year the profit of {e} was {v}.",
            "The profit of {e} rose to {v}.",
        ),
        asks=(
            "How much did {e} earn last year?",
            "What was the profit of {e}?",
            "How much profit did {e} make?",
        ),
        slots={"v": "money"},
    ),
    Relation(
        says=("{e} closed its oldest plant because {v[0]}.", "Because {v[0]}, {e} closed its oldest plant."),
        asks=(
            "Why did {e} close its oldest plant?",
            "What was the reason for closing the oldest plant of {e}?",
        ),
        slots={"v": WHY},
        answer="{v[0]}",
    ),
    Relation(
        says=(
            "{v} is the director of {e}.",
            "{e} is led by {v}.",
            "Since {y} {v} has been at the head of {e}.",
        ),
        asks=("Who leads {e}?", "Who is the director of {e}?", "Who is the head of {e}?"),
        slots={"v": "person", "y": "year"},
    ),
    Relation(
        says=(
            "{v} of the goods of {e} are sold abroad.",
            "{e} sells {v} of its goods abroad.",
            "Exports make up {v} of the sales of {e}.",
        ),
        asks=("What share of its goods does {e} sell abroad?", "How much of the sales of {e} are exports?"),
        slots={"v": "percent"},
    ),
)
