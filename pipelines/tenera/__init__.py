"""`load.tenera`: quotes from the SuperTenera aggregator into schema `quotes`.

sources.py   each source's shape, declared once: edit here to fit the real payloads
shapes.py    the words of those declarations, and how a payload is taken apart by them
amounts.py   numbers as sources write them
tables.sql   quote_section, quote, quote_value
load.py      the pipeline: each source fetched, read and loaded by itself
"""
