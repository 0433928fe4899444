"""Statistics of a benchmark, exact and without any knowledge of what is measured.

quantiles   percentiles by nearest rank, and their intervals from order statistics
bootstrap   intervals of what comes in clusters, as the gaps of one stream do, and of ratios of pairs
comparison  whether the second of two is better, looked at several times on the way
"""
