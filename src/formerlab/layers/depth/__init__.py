"""Depth mixers. A depth mixer combines the output of a block with the outputs of earlier blocks."""
