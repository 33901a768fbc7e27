"""The formats of shards, `--output_format`: one module for each, imported when it is used."""
