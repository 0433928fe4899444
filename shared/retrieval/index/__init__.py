"""Search passages by their words and their vectors, on disk in generations.

byte_strings    many byte strings as mapped files
file_records    what an index has of its documents
passage_table   the passages of an index, in its order
words           a text as terms, in any script
term_counts     how often each term is in each passage
lexical         passages searched by their terms
nearest         vectors searched: all compared, or a part of them
metadata_masks  passages that filters let through
passage_index   passages, vectors and terms, searched
manifest        which generation counts, and what made it
store           the index on disk
unfinished      what an interrupted indexing has got already
reading_progress  how far the reading of it is
reading         a corpus as it is now, of which only what has changed is read
change          from one state of an index to the next
build           the folder's index, new or brought up to date
"""
