"""The table of work that jobs gave to other engines."""
