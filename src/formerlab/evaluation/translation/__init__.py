"""Evaluation of translation models: beam search, BLEU, attention maps."""
