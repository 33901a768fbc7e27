"""The optimizers: what a step subtracts from each weight, with the state that this needs."""
