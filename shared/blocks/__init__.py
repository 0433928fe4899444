"""KV blocks, as all services speak of them: no torch here.

block_hash    their names: chained, keyed hashes of tokens
window        which of them a window of attention still reads
layer_groups  one block in each group of layers
room          how many a sequence is given room for
prefix_fetch  when those of another worker are fetched
"""
