"""Moving KV blocks from the worker that computed them to the worker that decodes with them.

    limits            every size, count and time limit of a transfer
    transfer_key      what both sides call a transfer
    callbacks         what sender and receiver tell the service they belong to
    cell_copy         cells copied and hashed in one pass over memory
    pool_memory       a pool's bytes, per (layer, blocks)
    cells             the state of each (layer, block) cell of a transfer
    chunk             the binary header of a chunk on the wire, and its checksum
    outgoing          one transfer at the sender, as a pure state machine
    incoming          one transfer at the receiver, as a pure state machine
    chunk_writer      the receiver's sink: chunks into the pool, or nowhere
    shared_pool       pool memory that another process of this host can map
    credit            the bytes that may be on their way to a receiver, shared out
    grants            grants and credit messages
    mapped_pools      which senders' pools are mapped here
    copier            cells out of a mapped pool
    send_loop         cells onto the wire, or announced in shared memory
    expiring          a bounded, forgetful memory for early and late messages
    unknown_transfers messages to a sender that come too early or too late
    ended_transfers   what a receiver still answers for
    outgoing_timer    what time brings to a sender's transfers
    incoming_timer    what time brings to a receiver's transfers
    control_sender    control messages from synchronous code onto the bus
    sender            KvSender: what a prefill service uses
    receiver          KvReceiver: what a decode service uses

A transfer's control messages travel on the control connection, its chunks on the bulk connection, so
either may overtake the other.
"""
