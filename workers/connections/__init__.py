"""Database sessions of attempts: fenced, known by name, stopped with their attempt."""
