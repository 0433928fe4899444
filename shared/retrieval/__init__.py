"""A folder of documents as passages that can be found by meaning and by words.

corpus         which files count
passages       a file cut into passages
words          a text as terms, in any script
vectors        what texts become to be compared
model_files    where the embedding model's files are, and that they are whole
bert           its encoder
embedder       texts → vectors (all-MiniLM-L6-v2); with bert, what imports torch here
lexical        passages searched by their terms
nearest        vectors searched: all compared, or a part of them
passage_table  the passages of an index, in its order
index          passages, vectors and terms, searched
store          the index on disk: generations
unfinished     what an indexing that was interrupted has got already
build          the folder's index, new or brought up to date
"""
