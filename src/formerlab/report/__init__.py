"""Turn rows into figures, tables and verdicts on claims, without importing torch."""
