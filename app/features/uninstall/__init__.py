"""Removes the tables of the queue from a database."""
