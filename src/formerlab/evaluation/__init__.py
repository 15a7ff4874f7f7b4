"""Measurements of trained models: zero-shot questions, cache pruning, translation, speed and memory."""
