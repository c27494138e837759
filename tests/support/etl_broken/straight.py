"""A pipeline beside a broken one."""

from pipelines.contract import register


@register("test.straight")
def straight() -> None:
    """Does nothing, well."""
