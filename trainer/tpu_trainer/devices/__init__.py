"""The devices of a run: the interfaces that training knows, and their implementations in TensorFlow and PJRT."""
