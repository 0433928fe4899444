"""Train a draft for the user's own target, and with the same loop whatever else is trained here.

distillation    what `penstock distill` goes on from: a target, prompts and its answers
draft_distillation  the way of a draft model, from the target to what it is worth; heads, of a draft head
draft_shape     how large a draft is, and which layers of the target it starts from
draft_start     the draft before it has learned
prompts         what the target is asked
taught_rows     what it answered, in files
draft_trainer   a step of distillation
llama           the model in training; llama_files, its files
loop            steps until the time is spent; optimizer, muon, prefetch, precision and checkpoint are its
                parts
acceptance      how many drafted tokens are right; step_times and draft_worth, whether that pays
model_card      the README of a draft
difficulty      a classifier of questions, which is learned apart from all this: `penstock router train`
tensor_file     a safetensors file that is whole or absent
"""
