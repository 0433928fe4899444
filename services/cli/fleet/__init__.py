"""Commands that look after a running fleet, over the bus or its files.

fleet_watch      a connection to the bus, and who answers on it
status           instances, queues, KV, rates
audit            what every instance holds, per request
why              where the time of a request went
drain            let an instance finish its work and end
down             stop the stack that runs
adapter_reports  which adapters workers say they have
adapter          load, unload and list adapters
keys             API keys
secrets          bus users and the key of a fleet
"""
