"""The checks of `verify`: a split's manifest, the files beside its shards, its shards, and sums over them."""
