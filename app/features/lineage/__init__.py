"""Lineage: events for OpenLineage receivers."""
