"""The model: masking, objectives, patched layers and the loss."""
