"""Tables of the Tokenformer study (arXiv:2410.23168)."""
