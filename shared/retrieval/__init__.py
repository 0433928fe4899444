"""A folder of documents as passages that can be found by meaning.

corpus    which files count
passages  a file cut into passages
embedder  texts → vectors (all-MiniLM-L6-v2); the one module here that imports torch
index     passages + vectors, searched with faiss
store     the index on disk
build     the folder's index, new or brought up to date
"""
