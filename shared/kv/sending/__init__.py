"""The sender's side of KV transfers.

outgoing           one transfer, as a pure state machine
unknown_transfers  messages that come too early or too late
kv_transport       cells onto the wire, or announced in shared memory
send_loop          whose cells are next
sender             KvSender: all transfers of a process
"""
