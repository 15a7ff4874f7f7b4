"""Pruned attention by simulation: the reference loop and the compiled engine."""
