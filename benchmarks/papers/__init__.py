"""Reproduce the tables of the underlying papers next to baselines: `python -m benchmarks.papers`.

One script per table, each with the published figures, the baselines' on the same events, and a verdict for each target:

    [MM]    Tran, Nguyen, Fort et al., Revisiting Incremental Stochastic Majorization-Minimization Algorithms with
            Applications to Mixture of Experts, arXiv 2601.19811
    [CQT]   Makkuva, Oh, Kannan, Viswanath, Breaking the gridlock in Mixture-of-Experts, ICML 2019
    [MD]    Fruytier, Mokhtari, Sanghavi, Learning Mixtures of Experts with EM: A Mirror Descent Perspective, ICML 2025

[DMoE] is in `benchmarks.distributed`.
"""
