"""API keys as people manage them; `app/http/auth` checks them."""
