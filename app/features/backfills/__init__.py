"""Backfills: a task run for each slice of a period."""
