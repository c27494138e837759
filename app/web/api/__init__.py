"""The HTTP API, one module a subject."""
