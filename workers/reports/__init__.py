"""What leaves an attempt for people: log lines, fingerprints of errors, events for Sentry; and no secrets. Portable."""
