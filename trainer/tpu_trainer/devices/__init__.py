"""What executes steps: the interface, TensorFlow's strategies, PJRT's devices."""
