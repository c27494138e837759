"""Old names of the toolkit still work, with a warning."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO

import pytest

from dataloader.pipelines.toolkit import archives, sources, times, unpack

OLD_NAMES = [
    ("sources", "Patience", sources.Timeouts),
    ("sources", "Answer", sources.SourceResponse),
    ("times", "Clash", times.OffsetConflict),
    ("unpack", "Packing", unpack.Compression),
    ("archives", "extracted", archives.extract),
]


@pytest.mark.parametrize(("module", "name", "expected"), OLD_NAMES)
def test_old_name_is_found_with_a_warning(module, name, expected):
    with pytest.warns(DeprecationWarning, match=f"{name} is now called"):
        assert getattr(import_module(f"dataloader.pipelines.toolkit.{module}"), name) is expected


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'patience'"):
        getattr(sources, "patience")  # noqa: B009 - mypy would refuse the attribute


def test_old_field_of_a_dataclass_is_accepted():
    with pytest.warns(DeprecationWarning, match="tries= is now called max_attempts="):
        timeouts = sources.Timeouts(tries=2)  # type: ignore[call-arg]

    assert timeouts.max_attempts == 2


def test_old_keyword_of_a_function_is_accepted():
    with pytest.warns(DeprecationWarning, match="packing= is now called compression="):
        pieces = list(unpack.pieces(BytesIO(b"text"), packing=unpack.Compression.NONE))  # type: ignore[call-arg]

    assert pieces == [b"text"]


def test_old_keyword_of_a_constructor_is_accepted():
    with pytest.warns(DeprecationWarning, match="patience= is now called timeouts="):
        sources.HttpSource(patience=sources.Timeouts()).close()  # type: ignore[call-arg]
