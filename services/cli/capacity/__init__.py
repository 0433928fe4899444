"""Say what instances a load needs, from a profile of what they do: predictions, by playing the load on them.

step_curve           how long a decode step takes, by its batch
profile              the speed and the size of each instance
profile_file         a profile as TOML or JSON
workload             how often requests come, and how long they are
workload_trace       a workload as a trace recorded it
pipeline             requests that are played through instances
stage_loads          how busy each stage is, and who waits there
played_figures       latencies of requests that were played
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
