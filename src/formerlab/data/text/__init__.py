"""Text: files and sets of documents become streams of tokens."""
