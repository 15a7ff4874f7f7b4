"""Measurements of models (zero-shot questions, pruning, translation, speed, memory), baselines, and exact claims."""
