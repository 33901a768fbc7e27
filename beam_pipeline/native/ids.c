/* Counting token ids of 2 or 4 bytes. */
#include <stdint.h>

/* Adds the number of occurrences of each id to `counts`. The highest bit of an id of 4 bytes is no part of it. Returns the number of
 * ids that are not below `vocab_size`, which are not counted. */
int64_t tokenmill_count_ids(const void *ids, int32_t itemsize, int64_t size, int64_t *counts, int64_t vocab_size) {
    const uint16_t *narrow = ids;
    const uint32_t *wide = ids;
    int64_t others = 0;
    for (int64_t i = 0; i < size; i++) {
        int64_t id = itemsize == 2 ? narrow[i] : wide[i] & 0x7FFFFFFF;
        if (id < vocab_size) counts[id]++;
        else others++;
    }
    return others;
}
