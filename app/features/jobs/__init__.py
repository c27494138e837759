"""What an operator does with a job: cancel, retry, delete it."""
