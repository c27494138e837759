"""Bulk operations: cancel, retry or change all jobs that a filter selects."""
