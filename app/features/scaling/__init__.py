"""Numbers by which an autoscaler chooses how many workers run."""
