"""`dataloader doctor`: checks the database, the schema, the server and the queue, and names a remedy for each problem."""
