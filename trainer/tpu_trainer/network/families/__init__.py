"""Model families: how transformers' configurations and weights translate to the trainer's."""
