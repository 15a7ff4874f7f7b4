"""Translation: beam search, BLEU, attention maps."""
