"""Triggering, watching, canceling and retrying jobs over HTTP: what a service without any feature has."""
