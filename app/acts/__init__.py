"""What an operator can change, each change as one function."""
