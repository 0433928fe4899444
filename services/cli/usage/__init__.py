"""Say what each tenant has used of each model, and what that costs.

usage_sums  what gateways say, added up, or between two times
usage       the command
"""
