"""The HTTP framework: routing, OpenAPI, problems, JSON, API keys. `app.py` builds the Flask app."""
