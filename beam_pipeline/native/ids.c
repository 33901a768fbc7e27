/* Sums over token ids of 2 or 4 bytes, and copies of rows. */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_AVX2 __attribute__((target_clones("avx2", "default")))
#else
#define WITH_AVX2
#endif

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

/* Writes the sum of the products of each row's ids with `multipliers`, mod 2**64. */
WITH_AVX2 void tokenmill_hash_rows(const void *ids, int32_t itemsize, int64_t rows, int64_t max_length, const uint64_t *multipliers,
                         uint64_t *hashes) {
    const uint16_t *narrow = ids;
    const uint32_t *wide = ids;
    for (int64_t row = 0; row < rows; row++, narrow += max_length, wide += max_length) {
        uint64_t hash = 0;
        if (itemsize == 2)
            for (int64_t i = 0; i < max_length; i++) hash += narrow[i] * multipliers[i];
        else
            for (int64_t i = 0; i < max_length; i++) hash += wide[i] * multipliers[i];
        hashes[row] = hash;
    }
}

/* Copies the rows `rows` of `from` to the rows `slots` of `to`, each of `size` bytes. */
void tokenmill_copy_rows(uint8_t *to, const int64_t *slots, const uint8_t *from, const int64_t *rows, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; i++) memcpy(to + slots[i] * size, from + rows[i] * size, (size_t)size);
}
