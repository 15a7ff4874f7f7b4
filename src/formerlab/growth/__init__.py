"""Growing trained models in parameter tokens or width, with the state of the optimizer."""
