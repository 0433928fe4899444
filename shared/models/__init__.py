"""Models as things that a person handles: fetched or copied into the store, and described.

wanted_files   which files of a repository or a folder make up a model
file_check     a file's digests, while it is read or copied
hub_file       one file of the hub, in as many tries as it takes
pulling        a model of the hub, of a folder or of a file into the store
model_facts    what a model is, from its files
"""
