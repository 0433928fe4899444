"""Have drafts made ahead of time, and offer what fits when a round has ended.

In reading order: `draft_fan` says for how many outcomes drafts are asked, `answer_times` how long an answer
may take to be of use, and `draft_offers`, in the engine's thread, what of a draft fits before each step.
"""
