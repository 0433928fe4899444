"""The sender's side of KV transfers.

outgoing           one transfer, as a pure state machine
unknown_transfers  messages that come too early or too late
send_loop          cells onto the wire, or announced in shared memory
outgoing_timer     what time brings to the transfers
sender             KvSender: all transfers of a process
"""
