"""Steps on a mesh of devices by PJRT: lowering, partitioning, processes that train together."""
