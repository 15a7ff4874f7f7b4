"""Figures of the denseformer study."""
