"""Tables of the pruning study (Decay, Jo and Shin 2024; A2SF, arXiv:2407.20485)."""
