"""Proof that a worker process is dead, and the takeover of its runs."""
