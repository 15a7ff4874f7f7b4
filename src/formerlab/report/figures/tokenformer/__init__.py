"""Figures of the tokenformer study."""
