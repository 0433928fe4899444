"""Small files that several processes read and write.

atomic_write    files that are whole or absent
private_folder  nobody but their owner looks into them
folder_lock     one writer at a time
file_signature  whether a file has changed
bounded_file    one that a user names, no larger than it may be
api_key_file    API keys: hashes, tenants, limits
rotated_log     the log of a stack, as it is written
log_reader      the same, as it is read
command_file    what a command tells a launcher
roll_file       how a stack is rolled
scale_file      how many instances it has
adapter_file    which adapters are to be loaded
virtual_model   a name that stands for several models; virtual_model_file has them,
                difficulty_head says how hard a question is, and word_features are what it
                goes by without an embedder
"""
