"""API keys, browser sessions and permissions."""
