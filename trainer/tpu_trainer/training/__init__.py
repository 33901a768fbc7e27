"""From a configuration to trained weights: the step, the optimizer, devices and hosts, a run from start to end."""
