"""Limits, rates and circuit breakers: how many jobs may run, how many may start, and whether a task may."""
