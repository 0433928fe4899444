"""Play a load through a pipeline of instances, event by event, on what a profile says of each.

event_line      what happens next
step_log        when the steps of a decode worker ended
played_request  a request, and when it got how far
played_load     who comes when, the same again each time
cores           what computes, and instances that have cores of their own
core_turns      instances of one machine, who take turns on its cores
front_line      gateways, and who waits before them
prompt_worker   prefill, and its line
decode_worker   a batch of streams, its slots and its KV blocks
least_loaded    the worker with the least load of many
pipeline        all of them, and where a request goes
"""
