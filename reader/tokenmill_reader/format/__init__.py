"""The dataset format (docs/dataset-format.md): names, JSON and checks of its files. Nothing here opens a file."""
