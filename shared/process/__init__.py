"""The life of a process.

cores         the cores it may use
niceness      who goes first where services share cores
descriptors   how many files and connections it may hold open
heap          what loading leaves behind
quiet_end     how programs of a terminal end
service_help  what `--help` of a service says
service       from its configuration to its drain
serve_actor   what a service with a restarted actor does between the two
job_runner    a small process whose forks do what strangers give the input for, within limits
limited_jobs  its other end, in the service
"""
