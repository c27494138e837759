"""The fault campaign: real processes under load, faults from a seed, and a checker that believes only the tables.

    python -m tests.chaos run --seed 1            the campaign
    python -m tests.chaos mutants                 the same on purposely broken protocols: each must be caught

docs/chaos.md describes the campaign and its report.
"""
