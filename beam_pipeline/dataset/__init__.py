"""The dataset folder: records, shards, manifest, statistics, and how they come to be there all at once."""
