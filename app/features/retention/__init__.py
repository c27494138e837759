"""Retention: finished jobs and records are removed after a period."""
