"""The model and its arithmetic: what is masked or predicted, the layers that are changed, the loss."""
