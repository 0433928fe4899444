"""The receiver's side of KV transfers.

incoming         one transfer, as a pure state machine
chunk_writer     chunks into the pool, or nowhere
credit           the bytes that may be on their way, shared out
grants           grants and credit messages
copier           cells out of a mapped pool
ended_transfers  what a receiver still answers for
receiver         KvReceiver: all transfers of a process
"""
