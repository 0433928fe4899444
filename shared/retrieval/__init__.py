"""A folder of documents as passages that can be found by meaning.

corpus       which files count
passages     a file cut into passages
vectors      what texts become to be compared
model_files  where the embedding model's files are, and that they are whole
bert         its encoder
embedder     texts → vectors (all-MiniLM-L6-v2); with bert, what imports torch here
index        passages + vectors, searched with faiss
store        the index on disk
build        the folder's index, new or brought up to date
"""
