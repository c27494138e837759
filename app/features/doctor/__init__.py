"""`dataloader doctor`: checks the database, schema, server and queue, and names a remedy for each problem."""
