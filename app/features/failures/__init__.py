"""Failed and lost jobs, grouped by the fingerprint of the error."""
