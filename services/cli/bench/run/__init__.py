"""A load while it runs.

cut              what still runs of a load that is cut
call_record      what became of one call, and how it is said to another process
client           one dialogue: its calls in turn, as its client behaves
server_watch     what the server's processes cost meanwhile, where they are on this machine
loop_watch       whether we ourselves are the bottleneck
load             an open and a closed loop over dialogues
load_parts       one load by several processes
rate_sweep       loads of rising rates, up to the knee
"""
