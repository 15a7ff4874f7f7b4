"""Growth of trained models by parameter tokens or in width, with the state of the optimizer."""
