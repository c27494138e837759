"""The audit log: who changed what."""
