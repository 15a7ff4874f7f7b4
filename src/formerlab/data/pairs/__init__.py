"""Parallel data: pairs of a sentence and its translation."""
