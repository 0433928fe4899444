"""Connect a stack to the network: its ports, and its bus.

gateway_ports  the ports that its gateways serve on
nats           a nats-server of its own, and who may come in
own_beats      the latest heartbeats of its instances
ports          ports on this machine that are free
stack_bus      its connection to the bus
"""
