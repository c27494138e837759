"""A package of pipelines with one that cannot be imported."""
