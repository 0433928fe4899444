"""Move KV blocks from the worker that computed them to the worker that decodes with them.

limits          every size, count and time limit of a transfer
transfer_key    what both sides call a transfer, and what its owner is told of it
cells           the state of each (layer, block) cell of a transfer
request_blocks  where a request's blocks lie, and which of them are transferred
chunk           the binary header of a chunk on the wire, and its checksum
expiring        a bounded, forgetful memory for early and late messages
control_sender  control messages from synchronous code onto the bus
transports      the ways in which KV travels: the one list of them
transfer_timer  what time brings to transfers
transfer_side   what sender and receiver do alike: hold transfers, end them once
memory/         a pool's bytes, and the pools of other processes
sending/        KvSender: what a prefill service uses
receiving/      KvReceiver: what a decode service uses
both_sides      a sender and a receiver of one worker

A transfer's control messages travel on the control connection, its chunks on the bulk connection, so
either may overtake the other.
"""
