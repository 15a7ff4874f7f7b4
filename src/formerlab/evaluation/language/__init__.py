"""Evaluation of language models: generation, zero-shot questions, information flow over depth, n-gram baselines."""
