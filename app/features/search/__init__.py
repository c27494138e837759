"""The search of the page header."""
