"""The proof that what attempts write to targets is there exactly once: `make targets-proof`, docs/chaos.md."""
