"""compile-check on JAX and libtpu. No other package of the trainer imports them."""
