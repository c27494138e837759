"""Captured output of attempts, and the log of a job."""
