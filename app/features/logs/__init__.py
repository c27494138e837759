"""Search of lines over the logs of all jobs."""
