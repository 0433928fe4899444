"""Faults of the fleet's protocols, planted by hand, by which the swarm is measured: how many does it find?

In reading order: `mutant` is what one is; `streams`, `transfers`, `holds` and `tenants` are those there are,
`planted` all of them; `swapped` puts one into a process, and `__main__` lets the swarm look for each.
"""
