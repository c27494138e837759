"""Database roles: what each part of the service may do."""
