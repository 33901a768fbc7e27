"""`make demo`: the two programs joined by their command lines and files, from text to a trained model."""
