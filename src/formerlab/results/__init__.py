"""Rows on disk: written by stages, read by all that reports."""
