"""Whole fleets by the thousand, each from a seed: what is asked, what breaks, what has to hold all the same.

In reading order: `keys` are who asks, `asks` what for, `plan` what one seed does, `themes` what it is about,
`draw` how it is drawn;
`record` is what happened and what was broken, `tenancy` keeps tenants apart; `reader`, `callers` and `client`
are who asks and judges; `place` and `full_disk` are the disk, `swarm_fleet` keeps processes up, `faults`
breaks them, `play` runs a plan, and `undisturbed` has the answers that it compares with; `shrink` makes a
plan small, `story` tells it, `seeds` goes through many.
"""
