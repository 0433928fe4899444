"""Commands that look after a running fleet, over the bus or its files.

fleet_watch      a connection to the bus, and who answers on it
status           instances, queues, KV, rates
audit            what every instance holds, per request
why              where the time of a request went
draining         let an instance end, or ask whether it may
stack_process    the process of an instance here, and its end where it hangs
drain            let an instance finish its work and end
instance_restart one instance drains, or is killed where it hangs, and is ready again
restart          that for an instance, or for each of a role
code_digest      whether the code on the disk is the same as before
stack_roll       every instance anew, with one more of its role meanwhile
roll             that for a stack here, or for some of its roles
scale            more instances of a role in a stack here, or fewer
down             stop the stack that runs
logs             what its services have said
adapter_reports  which adapters workers say they have
adapter          load, unload and list adapters
keys             API keys
secrets          bus users and the key of a fleet
"""
