"""What leaves an attempt for people: log lines, events for Sentry, and no secrets."""
