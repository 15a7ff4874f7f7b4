"""Depth mixers. A depth mixer combines the output of a block with earlier outputs, or replaces residual connections."""
