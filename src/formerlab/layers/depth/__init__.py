"""Depth mixers, one per file: each defines how a block combines the outputs of earlier blocks."""
