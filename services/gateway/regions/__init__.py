"""Know how far away the instances of other regions are, and when requests leave the gateway's own region.

In reading order: `round_trips` keeps what messages to a region take, `ways` makes hops and KV transfers of
it, `route_cost` says what a route costs with them; `home` decides between near and far without flapping,
`region_routing` makes the routes that it decides between, `regions` has it all for one gateway, with
`near_first` for what is asked without a route; `region_watch` measures.
"""
