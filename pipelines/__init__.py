"""What jobs do. Every module in here is loaded at start, and its `@register`ed callables become tasks."""
