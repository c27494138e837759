"""Workers and the queue inside another program, over its connections."""
