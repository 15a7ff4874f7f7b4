"""Pruned key-value caches: sweeps, score trajectories, masks, one-shot compression."""
