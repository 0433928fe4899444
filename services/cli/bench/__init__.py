"""Measure the engine, each hop, and a server under load, Penstock or another: `penstock bench`.

stats/         percentiles and intervals
plan/          what is asked, when, and how clients behave
targets/       what is measured
run/           a load while it runs
report/        what is said of it
serve_options  the options of `penstock bench serve`
measured_load  one load as they ask for it
worker         one process of several that make a load
serve          the command of a load
stacks/        stacks that a measurement starts itself
ab_side        a server that is there, or a stack that is started
ab_metric      what two servers are compared by
ab             two servers in turns: `penstock bench ab`
micro/         each hop on this machine over its floor: `penstock bench micro`
engine         the engine measured in a process of its own: `penstock bench engine`
bench          all that can be measured
"""
