"""Language models: generation, zero-shot questions, flow over depth."""
