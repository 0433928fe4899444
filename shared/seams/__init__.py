"""Give a process time, chance, and threads beside its event loop; and rare paths to a simulation.

clock.py    every clock that is read
chance.py   every number that is drawn, but for secrets
threads.py  pools for what may not hold up the event loop
buggify.py  rare paths that a simulation takes often
replacement.py  how a simulation stands in for one of them

Code in the rooms that `tests/unit/test_seams.py` names has these from here alone, and the rest from its event
loop: timers, tasks, `asyncio.to_thread`. So a whole fleet can be run in one process under one seed
(`tests/simulation/README.md`), where the simulation stands in for all of it.
"""
