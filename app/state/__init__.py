"""Queues, worker processes and statistics of jobs, which many features read."""
