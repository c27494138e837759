"""Graphs: jobs that wait for one another."""
