"""The page of worker processes."""
