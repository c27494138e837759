"""What jobs do. Every module in here is loaded at start, and its `@register`ed callables become tasks."""

if __name__ == "pipelines":  # imported from a checkout without `dataloader.`
    from dataloader._old_names import redirect

    redirect(__name__)
