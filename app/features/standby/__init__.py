"""Reads from a standby server."""
