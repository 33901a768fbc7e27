"""From a configuration to trained weights: a run from its data to its summary."""
