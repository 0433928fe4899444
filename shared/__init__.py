"""The parts that the services share; they import this and never each other.

import_without  a library without what it brings along
import_late     a library whose parts are read when somebody uses them
errors       typed errors, one code each
deadline     absolute deadlines, and the offsets of clocks
tasks        tasks that are sure to end
roles        which services there are
degradation  what is left out under pressure, in order
cache_modes  whether an earlier answer will do
sampling/    every sampling parameter, and who sets its default
blocks/      KV blocks: their names, their groups, how many a sequence gets
files/       files that are whole or absent; the files of API keys and adapters
telemetry/   logs, metrics, the timeline
health/      the watchdog over what has to move
messages/    every message on the bus
bus/         two connections to NATS, the codec, the fleet view, the permissions
actor/       mailboxes, supervision, leases, tombstones
config/      typed configuration and its sources
process/     the life of a service process
text/        tokenizer, chat template, incremental decoding, stops
retrieval/   documents, encoders, indexes
engine/      model families, paged KV, scheduler, sampler
kv/          KV blocks between workers
worker/      what prefill, decode and speculator are alike
training/    drafts for any target
demo/        the small models that ship
"""
