"""Runs jobs. `WorkerPool` in pool.py is the entry point: it starts and stops the worker and background threads."""
