"""The dataset folder: records, shards, manifest and statistics, the lock, and the files of unfinished runs."""
