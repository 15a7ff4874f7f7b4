"""Figures of the decay study."""
