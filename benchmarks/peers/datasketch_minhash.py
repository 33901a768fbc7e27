"""The peer: datasketch's MinHash of given sets of hashed shingles, with given hash functions, for comparison.

Its signatures must equal those of `curation/minhash.py`.
"""

from __future__ import annotations

import sys

import numpy as np
from datasketch import MinHash


def main() -> None:
    arrays = np.load(sys.argv[1])
    functions = arrays["functions"]
    signatures = []
    for start, end in zip(arrays["starts"][:-1].tolist(), arrays["starts"][1:].tolist(), strict=True):
        # It hashes values to 32 bits: these are the upper halves of the shingles' hashes.
        values = (arrays["hashes"][start:end] >> np.uint64(32)).tolist()
        minhash = MinHash(functions.shape[1], permutations=functions, hashfunc=int, scheme="legacy")
        minhash.update_batch(values)
        signatures.append(minhash.hashvalues)
    np.save(sys.argv[2], np.array(signatures, np.uint64))


if __name__ == "__main__":
    main()
