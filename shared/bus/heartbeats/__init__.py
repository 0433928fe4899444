"""Say and hear heartbeats.

publisher       sends our own, often while there is something to tell of
repeated_beats  reads and writes those that say the same again
"""
