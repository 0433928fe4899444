"""The command line: `penstock up | ask | chat | status | …`.

__main__          which commands there are; each is one module, imported when it is asked for
exit_codes        what they end with
arguments         kinds of values that several take
stack_file        where the stack runs that they talk to
launcher_process  commands that are programs of the launcher
view/             what a terminal shows: text as it comes, Markdown, tables
ask/              commands that talk with a gateway
fleet/            commands that look after a running fleet
bench/            a load generator, for Penstock and for others
router/           what chooses among several models
usage/            what tenants have used, and what it costs
local/            commands that need no fleet
completion        all of them, for a shell
"""
