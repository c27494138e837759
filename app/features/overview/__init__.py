"""The Overview: what is wrong now, by subject."""
