"""A working pipeline in a package with a broken one."""

from dataloader.pipelines.contract import register


@register("test.straight")
def do_nothing() -> None:
    """Does nothing, well."""
