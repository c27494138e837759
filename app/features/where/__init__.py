"""Where a running job is: its stack, its processes, its SQL, and who blocks that."""
