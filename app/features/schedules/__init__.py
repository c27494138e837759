"""Schedules: jobs that start at times, or when datasets are updated."""
