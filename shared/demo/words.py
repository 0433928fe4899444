"""The word lists that facts are made from."""

from __future__ import annotations


def word_list(text: str) -> tuple[str, ...]:
    """Words with spaces between them."""
    return tuple(text.split())


ONSETS = word_list("""
b c d f g h j k l m n p r s t v w z br cr dr gr pr tr st sk sp th sh ch fl gl pl qu kr vr
""")
VOWELS = word_list("a e i o u a e i o ae ai ea ei ia io oa ou y")
CODAS = (
    "",
    "",
    "l",
    "n",
    "r",
    "s",
    "t",
    "m",
    "k",
    "th",
    "nd",
    "rn",
    "ck",
    "x",
    "ll",
    "sh",
    "ria",
    "mor",
    "wick",
    "ford",
    "dale",
    "stad",
    "ven",
)

NOUNS = word_list("""
harbour master river tower bridge garden market school doctor captain engine clock window lamp library
temple kitchen mirror ladder bottle letter museum forest island mountain village castle road teacher
baker painter farmer soldier driver singer judge nurse sailor miller tailor carpenter mayor colour
height weight length price age size name capital motto anthem flag currency language founder owner
author leader keeper rival guardian brother sister neighbour symbol festival dish drink animal bird tree
flower stone metal fabric instrument song story poem map coin ship wagon train horse cat dog wolf bear
eagle snake frog apple bread cheese honey soup salt pepper tea coffee winter summer autumn spring
morning evening night storm rain snow wind fire water earth shadow light silver gold copper iron
""")
TECHNICAL = word_list("""
gateway tokenizer retriever prefill decode speculator detokenizer worker service server client broker
request response message stream token prompt answer model engine block cache page pool batch queue
mailbox actor session deadline lease epoch heartbeat timeline transfer chunk credit layer tensor kernel
thread process socket port address subject header payload checksum hash key value index vector embedder
corpus passage document query filter limit budget timeout retry drain restart launcher registry schema
config option flag file folder path log metric histogram counter gauge trace span alert dashboard probe
container image volume network cluster node shard replica leader follower snapshot checkpoint backup
scheduler allocator sampler verifier draft target seed temperature penalty position sequence vocabulary
template system user role channel connection buffer codec parser compiler linker test suite release
version branch commit package module function class method argument default size rate capacity latency
throughput bandwidth memory disk core device accelerator interface transport protocol contract policy
priority order state phase hop event error code reason status outcome result usage audit owner sender
receiver consumer producer subscriber publisher listener handler middleware proxy balancer router
""")
ADJECTIVES = word_list("""
default maximum minimum first last main small large old new red green blue black white secret hidden
public private local remote shared common active idle slow fast short long wide deep high low open
closed bounded absolute internal external initial final total inner outer upper lower northern southern
royal ancient wooden golden silver stable soft hard full empty next previous current single double
""")


def _verbs(text: str) -> tuple[tuple[str, str, str], ...]:
    forms = (verb.strip().split("/") for verb in text.split(";"))
    return tuple((base, third, participle) for base, third, participle in forms)


# (base, third person, participle)
VERBS = _verbs("""
send/sends/sent; hold/holds/held; keep/keeps/kept; start/starts/started; stop/stops/stopped;
read/reads/read; write/writes/written; open/opens/opened; close/closes/closed; count/counts/counted;
check/checks/checked; verify/verifies/verified; move/moves/moved; copy/copies/copied; free/frees/freed;
own/owns/owned; serve/serves/served; route/routes/routed; drop/drops/dropped; carry/carries/carried;
guard/guards/guarded; build/builds/built; paint/paints/painted; sell/sells/sold; teach/teaches/taught;
find/finds/found; choose/chooses/chosen; measure/measures/measured; limit/limits/limited;
store/stores/stored; load/loads/loaded; index/indexes/indexed; cancel/cancels/cancelled;
publish/publishes/published; sample/samples/sampled; decode/decodes/decoded; split/splits/split;
merge/merges/merged; follow/follows/followed; lead/leads/led; protect/protects/protected;
repair/repairs/repaired; visit/visits/visited; use/uses/used; run/runs/run; print/prints/printed;
show/shows/shown; report/reports/reported; return/returns/returned; accept/accepts/accepted;
reject/rejects/rejected; release/releases/released; reserve/reserves/reserved; extend/extends/extended;
replace/replaces/replaced; wait for/waits for/awaited; turn into/turns into/turned into; connect
to/connects to/connected to; depend on/depends on/required; make/makes/made; produce/produces/produced;
receive/receives/received; compute/computes/computed; need/needs/needed; require/requires/required;
set/sets/set; create/creates/created; delete/deletes/deleted; ask/asks/asked; answer/answers/answered;
watch/watches/watched; restart/restarts/restarted; supervise/supervises/supervised;
retry/retries/retried; shed/sheds/shed; admit/admits/admitted; place/places/placed; rank/ranks/ranked;
render/renders/rendered; tokenize/tokenizes/tokenized; fill/fills/filled; clean/cleans/cleaned;
drive/drives/driven; hide/hides/hidden; love/loves/loved
""")
HOLDING = (
    ("hold", "holds"),
    ("have", "has"),
    ("contain", "contains"),
    ("use", "uses"),
    ("allow", "allows"),
    ("keep", "keeps"),
    ("need", "needs"),
    ("send", "sends"),
)
UNITS = word_list("""
ms seconds minutes hours days tokens blocks bytes KB MB GB requests workers layers messages % metres
miles kilograms litres pages coins steps rows instances times
""")
TIME_UNITS = word_list("ms milliseconds seconds minutes hours days weeks years steps µs")
NUMBER_WORDS = word_list("two three four five six seven eight nine ten eleven twelve twenty forty")
IDENTIFIERS = (
    "{a}_{b}",
    "{a}.{b}",
    "--{a}",
    "--{a}-{b}",
    "{A}_{B}",
    "{a}.toml",
    "{a}/{b}.py",
    "`{a}`",
    "`{a} {b}`",
    "`{a}_{b}`",
    "`{a} --{b}`",
    "`--{b}`",
    "{a}-{n}",
    "{A}",
    "`make {a}`",
    "{a}{n}",
    "`{A}_{B}`",
    "`{a}.{b}`",
)
ARTICLES = ("a", "the", "one", "no", "any", "each")
LINKS = word_list("to from with for in on at before after without through over under")
PLACES = word_list("in at on near behind under inside beside from with over through")
ROLES = ("job", "purpose", "task", "role", "aim", "duty", "goal", "work")
REASONS = ("because", "so that", "since", "as")
CONDITIONS = ("when", "if", "once", "after", "while")
CATEGORIES = (
    "service",
    "part",
    "component",
    "person",
    "place",
    "thing",
    "process",
    "one",
    "instance",
    "module",
)
CODE_KINDS = (
    "command",
    "option",
    "flag",
    "file",
    "function",
    "field",
    "metric",
    "setting",
    "variable",
    "subject",
    "message",
    "endpoint",
)
FILLERS = (
    "Nothing else is known about it.",
    "The rest of the page explains how the parts fit together.",
    "It was raining that morning, and the streets were empty.",
    "Most people never notice the difference.",
    "See the next section for an example.",
    "The old man shook his head and said nothing.",
    "This is the simplest arrangement that works, and it can be changed later.",
    "She laughed, closed the book and went down to the garden.",
)
HOW = word_list("long large big high many much fast old wide far")
# (preposition, how to ask)
SPANS = (
    ("every", "How often"),
    ("after", "When"),
    ("after", "After how long"),
    ("within", "How fast"),
    ("within", "How soon"),
    ("for", "For how long"),
)
TAILS = (
    " by default",
    " at most",
    ", which {verbs} {entity}",
    ", and {entity} {verbs} {other}",
    " and {verbs} {entity}",
    " when {entity} {verbs} {other}",
    ", not {entity}",
    ", so {entity} {verbs} {other}",
    " for {entity}",
    " (see {entity})",
)
