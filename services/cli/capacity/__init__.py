"""Say what instances a load needs, from a profile of what they do; predictions, with their formulas.

queueing             lines before servers, in closed form
step_curve           how long a decode step takes, by its batch
decode_batch         how full batches are, and who waits for a slot
profile              the speed and the size of each instance
profile_file         a profile as TOML or JSON
workload             how often requests come, and how long they are
workload_trace       a workload as a trace recorded it
core_sharing         how much longer work takes where instances share cores
stage_loads          how busy each stage is, and what waits there
prediction           what requests meet at so many instances
sizing               the fewest instances, what breaks first, one that fails
what_if              one thing changed
measured_comparison  predicted against measured
capacity_answer      all of it
capacity_words       the answer as text for a terminal
capacity_options     the options of `penstock capacity`
metrics_page         the metrics of an instance
stack_profile        a profile of a running stack
capacity             the command
"""
