"""Queues and worker processes: paused, drained, limited."""
