"""Say which model a virtual name stands for, by the operator's rules.

In reading order: `virtual_models` keeps their file in force; `rule_facts` is what a rule may ask of a request
and `rule_match` whether it holds, `question_language` the language; `model_shares` divides requests among
models so that a key keeps to one.
"""
