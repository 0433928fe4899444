"""Plan how many workers the coming load needs, and have the fleet scaled so.

In reading order: `arrival_window` is what came in a time, `seasons` what is usual then, `forecast` what will
come, and `request_shape` how long it is. `planner_settings` says what is wanted, `counts_search` finds the
fewest workers, `scale_in_delay` keeps them for a while, and `model_planner` decides for one model.
`model_counts` reads metrics, `fleet_sight` heartbeats and `cold_starts` how long a start takes;
`change_budget` bounds what is done at a time, and `fleet_planner` decides for all models. `scaler` is what
acts, as `launcher_scaler`, `compose_scaler` or `keda_scaler`. `plan_record` tells of it, `plan_loop` goes
round, `plan_words` says a plan, `plan_options` and `plan_command` are `penstock plan`.
"""
