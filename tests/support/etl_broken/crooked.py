"""Fails when it is imported."""

raise RuntimeError("the ruler is crooked")
