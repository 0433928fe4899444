"""A folder of documents as passages that can be found by meaning and by words.

documents/  files as passages, with what they say of themselves
encoders/   texts as vectors; rerankers
index/      passages searched; generations of an index on disk
"""
