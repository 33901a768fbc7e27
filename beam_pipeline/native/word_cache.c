/* The cache of words, see word_cache.h: a hash table with open addressing, whose slots are filled once.
 *
 * A thread claims an empty slot by making it BUSY, fills it, and then sets its size, which others read first. Two threads may cache
 * the same word, which does no harm. The table grows, or is emptied, only between calls, while no thread uses it.
 */
#include "word_cache.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

enum { FIRST_SLOTS = 1 << 12, MOST_SLOTS = 1 << 21, BYTES_PER_WORD = 64, ARENA_WORDS = 16 << 20 };

/* Large pages make access twice as fast where the system has them. */
void *tokenmill_allocate_table(size_t size) {
    enum { PAGE = 1 << 21 };
    void *table = NULL;
    if (size < PAGE) return malloc(size);
    size = (size + PAGE - 1) / PAGE * PAGE;
    if (posix_memalign(&table, PAGE, size)) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(table, size, MADV_HUGEPAGE); /* a hint: it may fail */
#endif
    return table;
}

static void empty(Cache *cache) {
    memset(cache->slots, 0, (cache->slot_mask + 1) * sizeof(Slot));
    cache->used = cache->arena_end = 0;
}

void tokenmill_free_cache(Cache *cache) {
    if (!cache) return;
    free(cache->slots);
    free(cache->arena);
    free(cache);
}

Cache *tokenmill_new_cache(void) {
    Cache *cache = calloc(1, sizeof(Cache));
    if (!cache) return NULL;
    cache->slot_mask = FIRST_SLOTS - 1;
    cache->slots = tokenmill_allocate_table(FIRST_SLOTS * sizeof(Slot));
    cache->arena = tokenmill_allocate_table(ARENA_WORDS * sizeof(uint32_t)); /* the system provides it where it is written */
    if (!cache->slots || !cache->arena) {
        tokenmill_free_cache(cache);
        return NULL;
    }
    empty(cache);
    return cache;
}

static uint64_t hash_of(const Slot *slot) {
    return slot->size <= INLINE_BYTES ? mix(slot->key[0], slot->key[1], slot->size) : slot->key[0];
}

static int arena_is_full(const Cache *cache) {
    return __atomic_load_n(&cache->arena_end, __ATOMIC_RELAXED) > ARENA_WORDS / 4 * 3;
}

/* The number of words in the cache, and those that `bytes` of text may add: one of BYTES_PER_WORD bytes is new at first. */
static uint64_t words_with(const Cache *cache, int64_t bytes) {
    return __atomic_load_n(&cache->used, __ATOMIC_RELAXED) + (uint64_t)bytes / BYTES_PER_WORD;
}

/* A table is used up to three quarters. */
static uint64_t capacity(uint64_t slots) { return slots / 4 * 3; }

int tokenmill_has_room(const Cache *cache, int64_t bytes) {
    uint64_t slots = cache->slot_mask + 1;
    return words_with(cache, slots < MOST_SLOTS ? bytes : 0) < capacity(slots) && !arena_is_full(cache);
}

void tokenmill_make_room(Cache *cache, int64_t bytes) {
    uint64_t count = cache->slot_mask + 1, words = words_with(cache, bytes);
    int is_full = count == MOST_SLOTS || arena_is_full(cache);
    while (count < MOST_SLOTS && count < 2 * words) count *= 2;
    Slot *slots = is_full ? NULL : tokenmill_allocate_table(count * sizeof(Slot));
    if (!slots) {
        empty(cache);
        return;
    }
    memset(slots, 0, count * sizeof(Slot));
    uint64_t used = 0;
    for (uint64_t i = 0; i <= cache->slot_mask; i++) {
        const Slot *slot = cache->slots + i;
        if (!slot->size || slot->size == BUSY) continue; /* BUSY: a fork ended the thread that filled it */
        uint64_t at = hash_of(slot) & (count - 1);
        while (slots[at].size) at = (at + 1) & (count - 1);
        slots[at] = *slot;
        used++;
    }
    /* A process that is forked meanwhile must not see an old table with a new count or mask. */
    Slot *old = cache->slots;
    __atomic_store_n(&cache->slots, slots, __ATOMIC_SEQ_CST);
    __atomic_store_n(&cache->slot_mask, count - 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&cache->used, used, __ATOMIC_SEQ_CST);
    free(old);
}

void tokenmill_cache_word(Cache *cache, const Pending *pending, const uint32_t *ids, int64_t count) {
    if (__atomic_load_n(&cache->used, __ATOMIC_RELAXED) >= capacity(cache->slot_mask + 1)) return;
    int is_short = pending->size <= INLINE_BYTES, has_entry = !is_short || count > INLINE_IDS;
    uint64_t start = 0;
    if (has_entry) {
        uint64_t bytes = is_short ? 0 : words_of_bytes(pending->size), words = bytes + (uint64_t)count;
        start = __atomic_fetch_add(&cache->arena_end, words, __ATOMIC_RELAXED);
        if (start + words > ARENA_WORDS) return;
        if (!is_short) memcpy(cache->arena + start, pending->word, (size_t)pending->size);
        memcpy(cache->arena + start + bytes, ids, (size_t)count * sizeof(uint32_t));
    }
    uint64_t at = pending->hash & cache->slot_mask;
    Slot *slot = cache->slots + at;
    for (uint8_t free_size = 0; !__atomic_compare_exchange_n(&slot->size, &free_size, BUSY, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
         free_size = 0) {
        at = (at + 1) & cache->slot_mask;
        slot = cache->slots + at;
    }
    slot->key[0] = pending->key[0];
    slot->key[1] = pending->key[1];
    slot->count = (uint8_t)count;
    if (has_entry) slot->ids[0] = (uint32_t)start;
    else memcpy(slot->ids, ids, (size_t)count * sizeof(uint32_t));
    __atomic_store_n(&slot->size, (uint8_t)pending->size, __ATOMIC_RELEASE);
    __atomic_fetch_add(&cache->used, 1, __ATOMIC_RELAXED);
}
