"""Sentence pairs of two languages."""
