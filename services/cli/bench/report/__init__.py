"""The report of a load.

latency_figures  percentiles of one quantity, with their intervals
service_level    objectives: of one request, and of a load
prices           what it cost
load_summary     all figures of a load, from its calls
load_words       a summary as text for a terminal
load_progress    how far a load is, while it runs
machine          what it ran on, and how busy that was
plots            curves as inline SVG
load_page        one HTML page with all of it, which needs nothing else
"""
