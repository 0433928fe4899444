"""Measure what each hop costs on this machine, over its floor, in one run: `penstock bench micro`.

micro_options  the options of the command
cost_rows      readings of one figure, and their ratios to a floor's
turns          sides that work in turns, and what a turn costs
peer_process   the other side of a hop, a process of its own
bus_peers      the other sides of a round trip
bus_trip       a request over the bus, over raw TCP and stock nats-py
kv_load        what is moved, and where its blocks lie
nats_socket    a plain blocking socket to a nats-server
kv_peers       the receiving sides of KV
kv_floors      the sending sides of what KV is compared with
kv_paths       KV over `nats` and `shm`, over raw TCP and memcpy
event_floors   servers that have every answer ready and only write it
token_events   the gateway's CPU for a token, over theirs
edge_clients   clients that connect anew, resume or keep a connection
edge_connections  what a connection to an edge costs
engine_start   the floor of its cold start
stack_life     its cold start, and a cancel until nothing is held
cost_page      the table, and all of it as JSON
micro          the command
"""
