"""What manuals of software say. Subjects are services and programs with an article: `the billing relay`."""

from __future__ import annotations

from shared.demo.lessons.relations import Relation

PROTOCOLS = ("HTTP", "HTTPS", "SSH", "MQTT", "SMTP", "FTP", "metrics", "admin", "debug", "TCP", "UDP")
JOBS = (
    "collect the readings of all sensors/collects the readings of all sensors/gathers what the sensors "
    "measure",
    "sort incoming parcels by weight/sorts incoming parcels by weight/puts parcels into order by weight",
    "resize uploaded pictures/resizes uploaded pictures/changes the size of uploaded images",
    "send invoices to customers/sends invoices to customers/bills the customers",
    "translate messages into other languages/translates messages into other languages/turns messages into "
    "other languages",
    "copy records to the second site/copies records to the second site/mirrors records at the other site",
    "remove old sessions/removes old sessions/cleans up sessions that are no longer used",
    "check passwords and issue tickets/checks passwords and issues tickets/authenticates users",
    "turn events into reports/turns events into reports/makes reports from events",
    "plan the routes of the trucks/plans the routes of the trucks/decides how trucks drive",
    "hand jobs to idle machines/hands jobs to idle machines/gives work to machines that have none",
    "compress files before they are stored/compresses files before they are stored/makes files smaller "
    "for storage",
    "watch the others and restart what died/watches the others and restarts what died/brings dead "
    "processes back",
    "keep the addresses of all nodes/keeps the addresses of all nodes/knows where each node is",
    "merge changes from several writers/merges changes from several writers/combines what different "
    "people wrote",
    "draw the map tiles/draws the map tiles/renders the pieces of the map",
    "count visits per page/counts visits per page/knows how often each page was seen",
    "charge the batteries at night/charges the batteries at night/loads the batteries while it is dark",
    "answer questions about orders/answers questions about orders/tells people about their orders",
    "encrypt backups and upload them/encrypts backups and uploads them/secures backups and sends them away",
    "cut long texts into pages/cuts long texts into pages/makes pages out of long texts",
    "turn voices into subtitles/turns voices into subtitles/makes subtitles of what is said",
    "choose the cheapest carrier/chooses the cheapest carrier/decides who carries a parcel for the "
    "least money",
    "store the pictures of the cameras/stores the pictures of the cameras/keeps what the cameras see",
    "join the answers of all shops/joins the answers of all shops/puts the replies of the shops together",
    "wake the machines in the morning/wakes the machines in the morning/starts the machines at the "
    "start of the day",
    "predict the load of the next day/predicts the load of the next day/says how much there will be to "
    "do tomorrow",
    "delete what nobody has read for a year/deletes what nobody has read for a year/removes old unread "
    "material",
    "find doubles in the list of members/finds doubles in the list of members/notices members that are "
    "listed twice",
    "print labels for the shelves/prints labels for the shelves/makes the labels of the shelves",
    "hold messages back until they are complete/holds messages back until they are complete/waits for "
    "the rest of a "
    "message",
    "check that an order is complete/checks that an order is complete/verifies orders before they are "
    "accepted",
)
EVENTS = (
    "the disk is full/there is no space left on the disk",
    "a client goes silent/nothing is heard from a client any more",
    "the password is wrong/somebody types a bad password",
    "the battery is low/little charge is left in the battery",
    "a file is damaged/a file turns out to be corrupt",
    "the network is down/there is no connection to the network",
    "two writers collide/two people change the same thing at once",
    "the licence has expired/the licence is no longer valid",
    "the queue is full/no more jobs fit into the queue",
    "a sensor fails/a sensor stops working",
    "the leader dies/the leader is lost",
    "the limit is reached/the limit has been hit",
    "the clock is wrong/the time is not set correctly",
    "an order is cancelled/somebody takes an order back",
    "the certificate is too old/the certificate is out of date",
    "memory runs short/there is hardly any memory left",
    "a user logs out/a user ends the session",
    "the power fails/there is a power cut",
)
ACTS = (
    "refuses new uploads/refuse new uploads/it refuses new uploads",
    "writes a warning to the log/write a warning to the log/it writes a warning to the log",
    "falls back to the old copy/fall back to the old copy/it falls back to the old copy",
    "waits for a minute/wait for a minute/it waits for a minute",
    "sends a mail to the operator/send a mail to the operator/it sends a mail to the operator",
    "switches to the spare line/switch to the spare line/it switches to the spare line",
    "deletes the oldest entries/delete the oldest entries/it deletes the oldest entries",
    "locks the account/lock the account/it locks the account",
    "elects a new one/elect a new one/it elects a new one",
    "stops at once/stop at once/it stops at once",
    "keeps the first version/keep the first version/it keeps the first version",
    "starts in read-only mode/start in read-only mode/it starts in read-only mode",
    "drops the connection/drop the connection/it drops the connection",
    "asks the other sites/ask the other sites/it asks the other sites",
    "returns the money/return the money/it returns the money",
    "skips the step/skip the step/it skips the step",
    "pauses all transfers/pause all transfers/it pauses all transfers",
    "serves from its cache/serve from its cache/it serves from its cache",
)
THINGS = (
    "users/user",
    "jobs/job",
    "connections/connection",
    "files/file",
    "records/record",
    "images/image",
    "devices/device",
    "threads/thread",
    "clients/client",
    "documents/document",
    "rows/row",
    "retries/retry",
    "channels/channel",
    "events/event",
    "tickets/ticket",
    "copies/copy",
    "uploads/upload",
    "tasks/task",
)
MEANS = (
    "a shared folder",
    "a queue on disk",
    "a pipe",
    "a serial line",
    "a signed link",
    "a private channel",
    "plain files",
    "a satellite link",
    "a message broker",
    "radio",
    "a dedicated cable",
    "a ring buffer",
)
ORDERS = (
    "age",
    "size",
    "priority",
    "name",
    "price",
    "distance",
    "arrival time",
    "weight",
    "customer",
    "region",
)
FORMATS = (
    "JSON",
    "CSV",
    "Parquet",
    "XML",
    "YAML",
    "Avro",
    "MessagePack",
    "plain text",
    "PNG",
    "the OpenMetrics format",
)
HASHES = ("SHA-256", "MD5", "CRC32", "SHA-1", "Adler-32", "xxHash64", "SipHash", "BLAKE3", "FNV-1a")
LANGUAGES = ("Rust", "Go", "Python", "Java", "Erlang", "C", "OCaml", "Kotlin", "Ruby", "Haskell")
PARTS_OF_DATA = (
    "the access log",
    "the journal",
    "the last snapshot",
    "the order book",
    "the change list",
    "the archive",
    "the write-ahead log",
    "the mirror",
    "the backup of the night",
    "the index file",
)

SERVICE_RELATIONS = (
    Relation(
        says=(
            "A new {t[1]} enters through {e}.",
            "Each {t[1]} comes in by {e}.",
            "{e} is where a {t[1]} enters.",
        ),
        asks=(
            "Through what does a {t[1]} come in?",
            "Where does a new {t[1]} enter?",
            "By which way does a {t[1]} get in?",
        ),
        slots={"t": THINGS},
        answer="{e}",
        backwards=("Which part receives a new {t[1]}?", "Which service does a {t[1]} arrive at first?"),
    ),
    Relation(
        says=("{e} turns {x} into {v}.", "Out of {x} {e} makes {v}.", "{v} are what {e} makes of {x}."),
        asks=("What does {e} make out of {x}?", "Into what does {e} turn {x}?", "What do {x} become in {e}?"),
        slots={
            "x": (
                "raw signals",
                "voices",
                "old maps",
                "plain words",
                "sketches",
                "bank notes",
                "short codes",
            ),
            "v": (
                "numbers",
                "subtitles",
                "tables",
                "drawings",
                "melodies",
                "letters",
                "street names",
                "charts",
            ),
        },
        backwards=(
            "Which service turns {x} into {v}?",
            "Which part converts {x} to {v}?",
            "What makes {v} of {x}?",
        ),
    ),
    Relation(
        says=(
            "{e} writes one {x} per {y}.",
            "For each {y} {e} writes a single {x}.",
            "{e} writes one {x} for every {y}.",
        ),
        asks=("How many {x}s does {e} write for each {y}?", "How many {x}s per {y} come from {e}?"),
        slots={
            "x": ("line", "record", "message", "page", "report"),
            "y": ("order", "minute", "user", "batch", "truck"),
        },
        answer="one",
    ),
    Relation(
        says=("{e} stops {x} before {v}.", "Before {v} {e} stops {x}.", "{e} ends {x} just before {v}."),
        asks=("Where does {e} stop {x}?", "At which point does {e} end {x}?", "When is {x} stopped by {e}?"),
        slots={
            "x": ("the output", "a transfer", "the recording", "the text", "the print"),
            "v": ("the first blank line", "midnight", "the last block", "the end mark", "the next signature"),
        },
        answer="before {v}",
    ),
    Relation(
        says=(
            "The {x} of {e} rises with every {v}.",
            "With every {v} the {x} of {e} grows.",
            "{e} adds one to its {x} at each {v}.",
        ),
        asks=(
            "When does the {x} of {e} increase?",
            "What makes the {x} of {e} rise?",
            "At which event does {e} raise its {x}?",
        ),
        slots={
            "x": ("generation", "counter", "version number", "serial number", "term"),
            "v": ("restart", "new leader", "failed login", "handover", "delivery", "change of the plan"),
        },
        answer="with every {v}",
    ),
    Relation(
        says=("A {x} of an earlier {y} is {v} by {e}.", "{e}: a {x} that belongs to an earlier {y} is {v}."),
        asks=(
            "What does {e} do with a {x} of an earlier {y}?",
            "What becomes of a {x} from a former {y} in {e}?",
        ),
        slots={
            "x": ("message", "ticket", "vote", "packet", "report"),
            "y": ("round", "term", "shift", "season", "session"),
            "v": (
                "thrown away",
                "returned to its sender",
                "counted and ignored",
                "written to the archive",
                "burnt",
            ),
        },
        answer="it is {v}",
    ),
    Relation(
        says=(
            "An instance of {e} counts as lost after {v} missed {x}.",
            "After {v} missed {x} an instance of {e} is given up.",
        ),
        asks=(
            "After how many missed {x} is an instance of {e} given up?",
            "How many {x} must be missing before {e} counts as lost?",
        ),
        slots={"v": "small", "x": ("pings", "reports", "signals", "roll calls", "check-ins", "replies")},
    ),
    Relation(
        says=(
            "The default {p} port of {e} is {v}.",
            "{e} listens for {p} on port {v}.",
            "{p} of {e} is served on port {v}.",
        ),
        asks=(
            "On which port does {e} listen for {p}?",
            "Which {p} port does {e} have by default?",
            "Where can I reach {e} by {p}?",
        ),
        slots={"p": PROTOCOLS, "v": "port"},
    ),
    Relation(
        says=(
            "The job of {e} is to {j[0]}.",
            "{e} {j[1]}.",
            "The task of {e} is to {j[0]}.",
            "{e} is there to {j[0]}.",
        ),
        asks=(
            "What is {e} there for?",
            "What does {e} do?",
            "What is the purpose of {e}?",
            "What is the task of {e}?",
        ),
        slots={"j": JOBS},
        answer="to {j[0]}",
        backwards=("Which part {j[2]}?", "What {j[2]}?", "Which service {j[1]}?"),
    ),
    Relation(
        says=("{e} {a[0]} when {c[0]}.", "When {c[0]}, {e} {a[0]}.", "If {c[0]}, {e} {a[0]}."),
        asks=(
            "What does {e} do if {c[1]}?",
            "How does {e} react when {c[1]}?",
            "What happens in {e} when {c[0]}?",
        ),
        slots={"c": EVENTS, "a": ACTS},
        answer="{a[2]}",
    ),
    Relation(
        says=("{e} {a[0]} when {c[0]}.", "When {c[0]}, {e} {a[0]}.", "{e} {a[0]} once {c[0]}."),
        asks=(
            "When does {e} {a[1]}?",
            "In which case does {e} {a[1]}?",
            "Under what condition does {e} {a[1]}?",
        ),
        slots={"c": EVENTS, "a": ACTS},
        answer="when {c[0]}",
        backwards=("Which part {a[0]} when {c[1]}?",),
    ),
    Relation(
        says=(
            "{e} holds {v} {t[0]}.",
            "{e} takes at most {v} {t[0]}.",
            "The limit of {e} is {v} {t[0]}.",
            "{e} keeps {v} {t[0]} at once.",
        ),
        asks=(
            "How many {t[0]} can {e} hold?",
            "What is the largest number of {t[0]} for {e}?",
            "How many {t[0]} fit into {e}?",
            "How many {t[0]} may {e} have at the same time?",
        ),
        slots={"v": "count", "t": THINGS},
    ),
    Relation(
        says=(
            "A {t[1]} of {e} may have {v} {u[0]}.",
            "{e} allows {v} {u[0]} for each {t[1]}.",
            "Each {t[1]} in {e} has up to {v} {u[0]}.",
        ),
        asks=(
            "How many {u[0]} may one {t[1]} of {e} have?",
            "What is the maximum of {u[0]} per {t[1]} in {e}?",
        ),
        slots={"v": "count", "t": THINGS[:9], "u": THINGS[9:]},
    ),
    Relation(
        says=(
            "{e} reports its state every {v}.",
            "The report interval of {e} is {v}.",
            "Every {v} {e} tells how it is.",
        ),
        asks=(
            "How often does {e} report its state?",
            "At what interval does {e} say how it is?",
            "How much time passes between two reports of {e}?",
        ),
        slots={"v": "moment"},
    ),
    Relation(
        says=("The timeout of {e} is {v}.", "{e} gives up after {v}.", "{e} waits {v} for an answer."),
        asks=(
            "After how long does {e} give up?",
            "How long does {e} wait for an answer?",
            "What timeout does {e} have?",
        ),
        slots={"v": "moment"},
    ),
    Relation(
        says=(
            "The lease of {e} lasts {v}.",
            "A lock taken by {e} expires after {v}.",
            "{e} keeps a lock for {v}.",
        ),
        asks=(
            "For how long does {e} keep a lock?",
            "When does a lock of {e} run out?",
            "How long is a lock by {e} valid?",
        ),
        slots={"v": "span"},
    ),
    Relation(
        says=(
            "The memory of {e} is limited to {v}.",
            "{e} may use {v} of memory.",
            "The memory limit of {e} is {v}.",
        ),
        asks=(
            "How much memory may {e} use?",
            "How much RAM does {e} get?",
            "What is the memory limit of {e}?",
        ),
        slots={"v": "bytes"},
    ),
    Relation(
        says=(
            "The size limit of {t[1]} in {e} is {v}.",
            "{e} takes a {t[1]} of up to {v}.",
            "A {t[1]} for {e} has at most {v}.",
        ),
        asks=(
            "How big may a {t[1]} for {e} be?",
            "What is the largest {t[1]} that {e} takes?",
            "How large can a {t[1]} in {e} get?",
        ),
        slots={
            "v": "bytes",
            "t": (
                "message/message",
                "picture/picture",
                "report/report",
                "file/file",
                "mail/mail",
                "page/page",
            ),
        },
    ),
    Relation(
        says=("{e} is written in {v}.", "The code of {e} is {v}.", "{e} is a program in {v}."),
        asks=(
            "In which language is {e} written?",
            "What programming language does {e} use?",
            "What was {e} programmed in?",
        ),
        slots={"v": LANGUAGES},
    ),
    Relation(
        says=(
            "{e} stores its data with {v}.",
            "The storage of {e} is built with {v}.",
            "{e} keeps everything in {v}.",
        ),
        asks=(
            "What does {e} use to store data?",
            "Which product holds the data of {e}?",
            "With what is the storage of {e} built?",
        ),
        slots={"v": "product"},
    ),
    Relation(
        says=("The model of {e} is {v}.", "{e} uses the model {v}.", "{e} computes with {v}."),
        asks=("Which model does {e} use?", "What model is behind {e}?", "With which model does {e} compute?"),
        slots={"v": "product"},
    ),
    Relation(
        says=("The checksum of {e} is {v}.", "{e} guards its data with {v}.", "{e} names its files by {v}."),
        asks=(
            "Which hash does {e} use?",
            "What kind of checksum protects the data of {e}?",
            "By which algorithm does {e} check its data?",
        ),
        slots={"v": HASHES},
    ),
    Relation(
        says=(
            "The output of {e} is in {v}.",
            "{e} writes {v}.",
            "The reports of {e} are {v}.",
            "{e} exports its numbers as {v}.",
        ),
        asks=(
            "In what format does {e} write?",
            "What format does {e} export?",
            "Which format has the output of {e}?",
        ),
        slots={"v": FORMATS},
    ),
    Relation(
        says=(
            "The queue of {e} is ordered by {v}.",
            "{e} sorts its queue by {v}.",
            "{e} works on jobs in the order of {v}.",
        ),
        asks=(
            "By what does {e} sort its queue?",
            "In which order does {e} work on jobs?",
            "What decides the order in the queue of {e}?",
        ),
        slots={"v": ORDERS},
    ),
    Relation(
        says=(
            "{e} talks to {o} through {v}.",
            "Between {e} and {o} data pass through {v}.",
            "{e} sends its results to {o} by {v}.",
        ),
        asks=(
            "How do data get from {e} to {o}?",
            "By what means does {e} reach {o}?",
            "What connects {e} with {o}?",
        ),
        slots={"o": "part", "v": MEANS},
    ),
    Relation(
        says=(
            "{e} restores its state from {v}.",
            "After a crash {e} is rebuilt from {v}.",
            "{e} recovers from {v}.",
        ),
        asks=(
            "From what does {e} recover?",
            "What does {e} use to restore its state?",
            "Where does {e} get its state from after a crash?",
        ),
        slots={"v": PARTS_OF_DATA},
    ),
    Relation(
        says=(
            "{e} keeps its history in {v}.",
            "The history of {e} stays in {v}.",
            "Old entries of {e} are in {v}.",
        ),
        asks=(
            "Where does {e} keep its history?",
            "Where are old entries of {e}?",
            "In which place can the history of {e} be found?",
        ),
        slots={"v": PARTS_OF_DATA},
        answer="in {v}",
    ),
    Relation(
        says=("The command {v} starts {e}.", "{e} is started by {v}.", "Run {v} to start {e}."),
        asks=("How do I start {e}?", "Which command starts {e}?", "What must be run to bring up {e}?"),
        slots={"v": "command"},
    ),
    Relation(
        says=(
            "The command {v} prepares {e} ahead of time.",
            "{v} builds the data of {e} in advance.",
            "{e} is prepared by {v}.",
        ),
        asks=(
            "Which command prepares {e}?",
            "With what are the data of {e} built beforehand?",
            "How is {e} prepared?",
        ),
        slots={"v": "command"},
    ),
    Relation(
        says=(
            "The settings of {e} are in {v}.",
            "{e} reads its configuration from {v}.",
            "{v} configures {e}.",
        ),
        asks=(
            "Where are the settings of {e}?",
            "Which file configures {e}?",
            "From where does {e} take its configuration?",
        ),
        slots={"v": "file"},
    ),
    Relation(
        says=(
            "{e} exits with code {v} when {c[0]}.",
            "The exit code of {e} is {v} when {c[0]}.",
            "When {c[0]}, {e} ends with code {v}.",
        ),
        asks=("Which exit code does {e} have when {c[1]}?", "With what code does {e} end if {c[0]}?"),
        slots={"v": "exit_code", "c": EVENTS},
    ),
    Relation(
        says=(
            "{e} degrades at {v} of its {q}.",
            "The soft limit of {e} is {v} of the {q}.",
            "{e} warns at {v} of the {q}.",
        ),
        asks=(
            "At what share of the {q} is the soft limit of {e}?",
            "From how much of its {q} on does {e} degrade?",
            "Which part of the {q} may {e} use before it warns?",
        ),
        slots={"v": "percent", "q": ("memory", "budget", "disk", "time", "quota", "bandwidth")},
    ),
    Relation(
        says=(
            "{e} sends one message per {v}.",
            "For each {v} {e} sends a message.",
            "{e} writes a line for every {v}.",
        ),
        asks=("For what does {e} send a message?", "What makes {e} write or send something?"),
        slots={
            "v": (
                "order",
                "night shift",
                "failed login",
                "upload",
                "block and minute",
                "customer and day",
                "step",
                "truck",
            )
        },
        answer="for each {v}",
    ),
    Relation(
        says=(
            "{e} is optional.",
            "{e} may be left out: it is optional.",
            "Nothing needs {e}; it is optional.",
        ),
        asks=("Is {e} required?", "Must {e} be there?", "Can the system do without {e}?", "Do I need {e}?"),
        slots={"v": ("it is optional",)},
    ),
    Relation(
        says=(
            "When {e} dies, only {v} is lost.",
            "A dead {b} costs only {v}; this is {e}.",
            "Without {e} there is less {v} and nothing else is lost.",
        ),
        asks=(
            "What is lost when {e} dies?",
            "What does a failure of {e} cost?",
            "What suffers when {e} is gone?",
        ),
        slots={
            "v": ("speed", "comfort", "precision", "history", "sound", "accuracy", "time"),
            "b": ("service", "process", "part"),
        },
    ),
    Relation(
        says=("{e} never {a[0]}.", "At no time does {e} {a[1]}."),
        asks=("What does {e} never do?", "What is {e} not allowed to do?"),
        slots={"a": ACTS},
        answer="{a[1]}",
    ),
    Relation(
        says=(
            "{e} frees its memory after {o} has answered.",
            "Only after {o} has answered does {e} free its memory.",
            "{e} frees its memory as soon as {o} has answered.",
        ),
        asks=(
            "When does {e} free its memory?",
            "What must happen before {e} frees its memory?",
            "At which moment is the memory of {e} released?",
        ),
        slots={"o": "part"},
        answer="after {o} has answered",
    ),
    Relation(
        says=(
            "{e} picks the machines by {v}.",
            "{e} chooses machines from {v}.",
            "{e} looks at {v} to choose the machines.",
        ),
        asks=(
            "On what basis does {e} choose machines?",
            "How does {e} pick the machines?",
            "What does {e} look at when it selects machines?",
        ),
        slots={
            "v": (
                "the load table",
                "the price list",
                "the map of the site",
                "the node registry",
                "the weather report",
                "their free memory",
                "the rota",
            )
        },
    ),
    Relation(
        says=("The version of {e} is {v}.", "{e} is at version {v}.", "The current release of {e} is {v}."),
        asks=(
            "Which version of {e} is this?",
            "What is the latest release of {e}?",
            "At which version is {e}?",
        ),
        slots={"v": ("1.4", "2.0", "0.9.3", "3.12", "4.1.7", "5.0", "7.2", "11.6", "0.3", "2.25")},
    ),
    Relation(
        says=(
            "{e} belongs to {v}.",
            "{v} maintains {e}.",
            "The owner of {e} is {v}.",
            "{e} is maintained by {v}.",
        ),
        asks=("Who maintains {e}?", "Who is responsible for {e}?", "Whom should I ask about {e}?"),
        slots={"v": "person"},
    ),
    Relation(
        says=(
            "{e} works in batches of {v} {t[0]}.",
            "{e} handles {v} {t[0]} at a time.",
            "The batch of {e} holds {v} {t[0]}.",
        ),
        asks=(
            "How many {t[0]} does {e} handle at a time?",
            "How large is a batch of {e}?",
            "How many {t[0]} are in one batch of {e}?",
        ),
        slots={"v": "count", "t": THINGS},
        answer="{v} {t[0]}",
    ),
    Relation(
        says=("{e} sends its data {v}.", "The data of {e} are sent {v}."),
        asks=("In what manner does {e} send its data?", "How are the data of {e} sent?"),
        slots={
            "v": (
                "row by row",
                "file by file",
                "page by page",
                "day by day",
                "all at once",
                "twice",
                "in reverse order",
                "in small pieces",
            )
        },
    ),
    Relation(
        says=("The option {v} makes {e} {a[1]}.", "With {v} {e} {a[0]}.", "{v} tells {e} to {a[1]}."),
        asks=(
            "Which option makes {e} {a[1]}?",
            "How do I tell {e} to {a[1]}?",
            "What must be set so that {e} {a[0]}?",
        ),
        slots={"v": "code", "a": ACTS},
    ),
    Relation(
        says=("The log of {e} contains {v}.", "{e} writes {v} into its log.", "{v} is in the log of {e}."),
        asks=("What is in the log of {e}?", "What does the log of {e} contain?", "What does {e} log?"),
        slots={
            "v": (
                "the name of the user",
                "the time of each order",
                "the address of the client",
                "the price of the parcel",
                "the size of every file",
                "the speed of the fan",
            )
        },
    ),
)
