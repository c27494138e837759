"""Alerts: rules that are compared with statistics and queues, and what fired."""
