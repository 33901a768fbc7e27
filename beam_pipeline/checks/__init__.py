"""The checks of `verify`: the manifest of a split, its shards and other files, and the sums over the shards."""
