"""Evaluation of pruned KV caches: sweeps, score trajectories, masks, one-shot compression, passkey retrieval."""
