"""The capabilities of the service, one folder each."""
