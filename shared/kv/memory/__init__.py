"""The bytes of a KV pool.

cell_copy    cells copied and hashed in one pass over memory
pool_memory  a pool's bytes, per (layer, blocks)
shared_pool  pool memory that another process of this host can map
mapped_pools which senders' pools are mapped here
plain_pool   a pool of bytes alone, without an engine
"""
