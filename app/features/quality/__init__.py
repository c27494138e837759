"""Datasets and the results of data checks."""
