"""Random drills on real processes for as long as one likes: what happens when is drawn from a seed.

In reading order: `schedule` is what happens, drawn; `asks` is what clients ask for and `clients` are those
who ask and judge; `extra_worker` is an instance that comes and goes; `disturber` lets things happen;
`footprint` is what processes hold while nothing runs, and whether that grows; `soak` is the whole of it, and
tells it.
"""
