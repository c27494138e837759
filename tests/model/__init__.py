"""The protocol of the queue as a model: states, actions, invariants; see docs/protocol.md."""
