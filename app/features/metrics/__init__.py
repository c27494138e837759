"""Prometheus metrics of the queue and the database."""
