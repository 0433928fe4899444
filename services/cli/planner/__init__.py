"""Plan how many workers the coming load needs.

In reading order: `arrival_window` is what came in a time, `seasons` what is usual then, `forecast` what will
come, and `request_shape` how long it is. `planner_settings` says what is wanted, `counts_search` finds the
fewest workers, `scale_in_delay` keeps them for a while, and `model_planner` decides for one model.
"""
