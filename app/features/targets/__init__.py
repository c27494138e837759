"""Targets: the databases that tasks write to, and whether what they write there is fenced."""
