"""Families of metrics that collectors make of values by label."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import GaugeMetricFamily, Metric


def gauge(name: str, meaning: str, values: Mapping[str, float] | float, *, label: str = "") -> Metric:
    """A gauge of one value, or with a value for each of the label's."""
    if not isinstance(values, Mapping):
        return GaugeMetricFamily(name, meaning, float(values))
    family = GaugeMetricFamily(name, meaning, labels=(label,))
    for label_value, value in values.items():
        family.add_metric((label_value,), value)
    return family
