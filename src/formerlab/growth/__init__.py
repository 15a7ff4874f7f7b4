"""Growing trained models: in tokens, in width, with the optimizer's state."""
