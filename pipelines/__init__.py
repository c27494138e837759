"""What jobs do. Every module in here is loaded at start, and its `@register`ed callables become tasks."""

from dataloader import _old_names

if __name__ == "pipelines":  # imported from a checkout without `dataloader.`
    _old_names.redirect(__name__)
else:
    _old_names.accept()
