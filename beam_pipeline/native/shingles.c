/* The inner loops of finding near-duplicates: plain C without Python's API, which `library.py` calls by ctypes.
 *
 * curation/shingles.py, curation/minhash.py and curation/similarity.py define the results, and have the same in NumPy.
 */
#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_VECTORS __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define WITH_VECTORS
#endif

enum { MOST_WIDTH = 1024, MOST_HASHES = 1024 };

static const uint64_t BYTE_FACTOR = 0x9DDFEA08EB382D69u; /* _BYTE_FACTOR in curation/shingles.py */
static const uint64_t ITEM_FACTOR = 0xC6A4A7935BD1E995u; /* _ITEM_FACTOR */
static const uint64_t MERSENNE_PRIME = ((uint64_t)1 << 61) - 1;

/* `mix64` in support/hashing.py. */
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Hashes the shingles of texts. Each text ends with a line feed; spaces separate its words.
 *
 * An item is a word or, with `characters`, a character. The shingle of `width` items is rolled over a text. A text of fewer
 * items has one shingle of them all, and a text without items the placeholder 0. `counts` gets the number of shingles of
 * each text. Returns the number of all shingles, or -1 if the width is out of range. */
int64_t tokenmill_shingles(const uint8_t *text, int64_t size, int64_t width, int32_t characters, uint64_t *shingles,
                           int64_t *counts) {
    if (width < 1 || width > MOST_WIDTH) return -1;
    uint64_t last[MOST_WIDTH]; /* the hashes of the last items, as a ring */
    uint64_t oldest_factor = 1;
    for (int64_t i = 0; i < width; i++) oldest_factor *= ITEM_FACTOR;
    int64_t total = 0, before = 0, items = 0, slot = 0;
    uint64_t rolled = 0;
    for (int64_t i = 0; i < size;) {
        if (text[i] == ' ') {
            i++;
            continue;
        }
        if (text[i] == '\n') {
            if (items < width) shingles[total++] = items ? mix(rolled) : 0;
            *counts++ = total - before;
            before = total;
            items = slot = 0;
            rolled = 0;
            i++;
            continue;
        }
        uint64_t hash = 0;
        do hash = hash * BYTE_FACTOR + text[i++] + 1;
        while (i < size && (characters ? (text[i] & 0xC0) == 0x80 : text[i] != ' ' && text[i] != '\n'));
        hash = mix(hash);
        rolled = rolled * ITEM_FACTOR + hash;
        if (items >= width) rolled -= last[slot] * oldest_factor;
        last[slot] = hash;
        slot = slot + 1 == width ? 0 : slot + 1;
        items++;
        if (items >= width) shingles[total++] = mix(rolled);
    }
    return total;
}

/* The smallest of (factor * shingle + term) mod 2**64 mod (2**61 - 1) mod 2**32 of `size` shingles, for each of the hashes. */
WITH_VECTORS
static void lower(const uint64_t *shingles, int64_t size, const uint64_t *factors, const uint64_t *terms, int32_t hashes,
                  uint32_t *least) {
    for (int32_t k = 0; k < hashes; k++) least[k] = UINT32_MAX;
    for (int64_t i = 0; i < size; i++) {
        uint64_t shingle = shingles[i] >> 32;
        for (int32_t k = 0; k < hashes; k++) {
            uint64_t value = factors[k] * shingle + terms[k];
            value = (value & MERSENNE_PRIME) + (value >> 61);
            /* Subtracting the prime if value >= prime is adding 1 to the lower half. */
            uint32_t half = (uint32_t)(value + ((value + 1) >> 61));
            least[k] = half < least[k] ? half : least[k];
        }
    }
}

/* Hashes bands of `rows` MinHashes of each text. `starts` has the first shingle of each text, and then the end of the last.
 * `bands_out` is [texts, bands]. Returns -1 if there are too many hashes. */
int64_t tokenmill_bands(const uint64_t *shingles, const int64_t *starts, int64_t texts, const uint64_t *factors,
                        const uint64_t *terms, int32_t bands, int32_t rows, uint64_t *bands_out) {
    if ((int64_t)bands * rows > MOST_HASHES) return -1;
    uint32_t least[MOST_HASHES];
    for (int64_t text = 0; text < texts; text++) {
        lower(shingles + starts[text], starts[text + 1] - starts[text], factors, terms, bands * rows, least);
        for (int32_t band = 0; band < bands; band++) {
            uint64_t hash = (uint64_t)band;
            for (int32_t row = 0; row < rows; row++) hash = mix(hash ^ least[band * rows + row]);
            *bands_out++ = hash;
        }
    }
    return 0;
}

/* Counts the common elements of each pair of ascending sets: `first[bounds[0]:bounds[1]]` and `second[bounds[2]:bounds[3]]`. */
void tokenmill_overlaps(const uint64_t *first, const uint64_t *second, const int64_t *bounds, int64_t pairs,
                        int64_t *common) {
    for (int64_t pair = 0; pair < pairs; pair++, bounds += 4) {
        const uint64_t *a = first + bounds[0], *a_end = first + bounds[1];
        const uint64_t *b = second + bounds[2], *b_end = second + bounds[3];
        int64_t count = 0;
        while (a < a_end && b < b_end) {
            uint64_t x = *a, y = *b;
            count += x == y;
            a += x <= y;
            b += y <= x;
        }
        common[pair] = count;
    }
}
