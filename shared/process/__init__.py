"""The life of a process.

cgroups       which control groups bound it
cores         the cores it may use
memory_room   the memory that is left, and who was killed for want of it
niceness      who goes first where services share cores
descriptors   how many files and connections it may hold open
heap          what loading leaves behind
heap_holes    what imports leave between objects, before a heap is shared with forks
attribute_cache  names that CPython has looked up, before a heap is shared with forks
file_pages    pages of mapped files that are given back
parts_of_torch  what torch brings along and nobody reads
quiet_end     how programs of a terminal end
service_help  what `--help` of a service says
service       from its configuration to its drain
serve_actor   what a service with a restarted actor does between the two
job_runner    a small process whose forks do what strangers give the input for, within limits
limited_jobs  its other end, in the service
"""
