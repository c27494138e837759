"""What this checkout costs, compared with the last release."""
