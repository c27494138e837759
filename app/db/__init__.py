"""Connections, statements, encoding and migrations of the database; knows no jobs."""
