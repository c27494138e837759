"""What many features read: queues, worker processes, statistics of jobs, and the servers of targets."""
