"""Rows into figures, tables and judged claims; nothing here needs torch."""
