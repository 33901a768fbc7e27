"""Devices that TensorFlow executes steps on: one host's CPU, GPUs or TPU."""
