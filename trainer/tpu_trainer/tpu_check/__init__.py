"""What compile-check needs of JAX and libtpu: nothing else in the trainer imports them, or anything here but chips."""
