/* A cache of the ids of words, which threads read and extend at the same time. */
#ifndef TOKENMILL_WORD_CACHE_H
#define TOKENMILL_WORD_CACHE_H

#include "words.h"

enum { INLINE_BYTES = 16, INLINE_IDS = 3, MOST_CACHED_BYTES = 96 };

/* A cached word. For a short one, of up to INLINE_BYTES, `key` is the word, filled up with zeros; for another one, it is its hash,
 * and the arena has the word and then the ids. The ids of a short one are here, up to INLINE_IDS of them, or in the arena. So one
 * access to memory is enough for most words. */
typedef struct {
    uint64_t key[2];
    uint32_t ids[INLINE_IDS]; /* the first one is the place in the arena, if something is there */
    uint8_t size;             /* in bytes; 0 in an empty slot, and BUSY while a thread fills it; written last */
    uint8_t count;            /* of ids */
    uint16_t unused;
} Slot;

enum { BUSY = 255 };

struct Cache {
    Slot *slots;
    uint64_t slot_mask;
    uint32_t *arena;
    uint8_t apart[64];    /* from what follows, which changes often, so that other threads keep what is before it */
    uint64_t used, arena_end;
};

/* A word that is looked up. */
typedef struct {
    const uint8_t *word;
    int64_t size;
    uint64_t key[2]; /* as in a slot */
    uint64_t hash;
} Pending;

/* The number of words of the arena that take so many bytes. */
static inline uint64_t words_of_bytes(int64_t size) { return ((uint64_t)size + 3) / 4; }

static inline uint64_t mix(uint64_t low, uint64_t high, uint64_t size) {
    uint64_t hash = (low ^ size * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 32 ^ high) * 0x94D049BB133111EBu;
    return hash ^ hash >> 29;
}

/* The first `size` bytes, from 0 to 8, of those that are loaded. */
static inline uint64_t first_bytes(uint64_t bytes, int64_t size) {
    if (size >= 8) return bytes;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return size > 0 ? bytes >> (64 - 8 * size) : 0;
#else
    return bytes & (((uint64_t)1 << 8 * (size > 0 ? size : 0)) - 1);
#endif
}

/* A mask of the first bytes of a word, found without a branch that would be hard to predict: it ends in the middle. */
static const uint8_t kept_bytes[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

/* Prepares to look up a word. Bytes after it are read, and do not matter. */
static inline void pend(Pending *pending, const uint8_t *word, int64_t size) {
    pending->word = word;
    pending->size = size;
    if (size <= INLINE_BYTES) {
        pending->key[0] = load(word) & load(kept_bytes + INLINE_BYTES - size);
        pending->key[1] = load(word + 8) & load(kept_bytes + INLINE_BYTES - size + 8);
        pending->hash = mix(pending->key[0], pending->key[1], (uint64_t)size);
    } else if (size <= MOST_CACHED_BYTES) {
        uint64_t hash = 0;
        for (int64_t i = 0; i < size; i += 8) hash = mix(hash, first_bytes(load(word + i), size - i), (uint64_t)size);
        pending->hash = pending->key[0] = hash;
        pending->key[1] = 0;
    }
}

static inline void fetch_slot(const Cache *cache, const Pending *pending) {
    __builtin_prefetch(cache->slots + (pending->hash & cache->slot_mask));
}

/* Writes the ids of a word of up to MOST_CACHED_BYTES, and returns their number; -1 if it is not cached. There is room for
 * INLINE_IDS. */
static inline int64_t find_word(const Cache *cache, const Pending *pending, uint32_t *ids) {
    uint64_t at = pending->hash & cache->slot_mask;
    for (;; at = (at + 1) & cache->slot_mask) {
        const Slot *slot = cache->slots + at;
        uint8_t size = __atomic_load_n(&slot->size, __ATOMIC_ACQUIRE);
        if (!size) return -1;
        if (size != pending->size) continue;
        if (slot->key[0] != pending->key[0] || slot->key[1] != pending->key[1]) continue;
        int is_short = size <= INLINE_BYTES;
        if (is_short && slot->count <= INLINE_IDS) {
            memcpy(ids, slot->ids, sizeof(slot->ids));
            return slot->count;
        }
        const uint32_t *entry = cache->arena + slot->ids[0];
        if (!is_short) {
            if (memcmp(entry, pending->word, (size_t)pending->size)) continue;
            entry += words_of_bytes(pending->size);
        }
        memcpy(ids, entry, slot->count * sizeof(uint32_t));
        return slot->count;
    }
}

/* Caches a word of up to MOST_CACHED_BYTES, unless the cache is full. */
HIDDEN void tokenmill_cache_word(Cache *cache, const Pending *pending, const uint32_t *ids, int64_t count);
/* Makes a cache. NULL if there is not enough memory. */
HIDDEN Cache *tokenmill_new_cache(void);
HIDDEN void tokenmill_free_cache(Cache *cache);
/* Whether there is room for the words of `bytes` of text; other threads may use the cache meanwhile. */
HIDDEN int tokenmill_has_room(const Cache *cache, int64_t bytes);
/* Makes room in a cache that has none, and that no thread uses meanwhile. */
HIDDEN void tokenmill_make_room(Cache *cache, int64_t bytes);

#endif
