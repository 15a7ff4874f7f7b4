"""Cache policies, one per file."""
