"""Attempts that run in a process of their own."""
