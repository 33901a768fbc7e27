"""The limits of the formats and of the manifest, in one table. Everything that checks a limit imports it from here."""

from __future__ import annotations

MOST_IDS = 2**31
"""The largest vocabulary: the formats store ids as int32."""

MOST_TOKENS_PER_ROW = 2**20
"""The largest `max_length` of a manifest."""

MOST_RECORDS = 2**31 - 1
"""The most records in a shard: places of rows in a shard are uint32, and arrow and MDS count in int32 or uint32."""

MOST_SHARDS = 10**8
"""The most shards in a split: shards are numbered in arrays of the memory of a process."""

SEEDS = (-(2**63), 2**63 - 1)
"""The smallest and largest seed: readers parse the manifest's numbers as 64-bit integers."""

MOST_DOCUMENT_TOKENS = 2**31 - 1
"""The most tokens in a document that is not packed: Megatron-LM's lengths and parquet's list offsets are int32."""

MOST_MDS_BYTES = 2**32 - 1
"""The largest shard in MDS: the places of its rows are uint32."""
