/* Training BPE merges from counted words: plain C without Python's API, which `words.py` calls by ctypes.
 *
 * The result is that of BpeTrainer in Hugging Face's tokenizers, which merges the pair with the highest count and, of several,
 * the one with the smallest ids. Its queue has the peculiarities below, which decide ties and repeated strings such as runs of
 * spaces, so they are kept:
 * - The count in the queue is the one at the time of the push. A pair whose count has changed is pushed again when it comes up.
 * - Two pairs can spell the same token, as `aa a` and `a aa` do. They share its id, so a pair can appear in further words after its
 *   push. Then it is in the queue twice. Each entry merges all of its occurrences in the words of that entry only.
 * - The count of a pair that has been merged is not reset.
 *
 * Instead of the words of a pair, an entry has the positions of its occurrences, so that long words cost no more than short ones.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A token is written at the positions of its first and of its last symbol. Those between them are INSIDE. */
static const uint32_t BORDER = UINT32_MAX; /* before and after each word */
static const uint32_t INSIDE = UINT32_MAX - 1;

typedef struct {
    uint64_t pair; /* left << 32 | right; EMPTY: the slot is free */
    int64_t count;
    uint32_t fresh;  /* 1 + its index in `fresh`, 0: it has no new occurrences */
    uint32_t pushes; /* entries that were made for it */
} Slot;

typedef struct {
    uint64_t pair;
    uint32_t *positions; /* NULL until they are counted, or if there is one */
    uint32_t only;       /* the only position, or the last one */
    uint32_t size;
    uint32_t filled;
} Fresh;

typedef struct {
    int64_t count;
    uint64_t pair;
    uint32_t *positions; /* ascending; NULL if there is one */
    uint32_t only;
    uint32_t size;
    uint64_t serial; /* of entries with equal counts and pairs, the first comes first */
} Entry;

typedef struct {
    uint64_t pair;
    uint32_t position;
} Occurrence;

typedef struct {
    uint32_t left, right, token;
} Merge;

typedef struct {
    uint32_t *symbols;
    int64_t size;
    const int64_t *starts, *counts; /* of the runs of words with equal counts */
    int64_t runs;
    uint32_t tokens, vocab_size;
    int64_t min_frequency;
    uint32_t *lengths;   /* of each token, in symbols */
    uint64_t *spellings; /* where its first symbols are in `spelled` */
    uint32_t *spelled;
    uint64_t spelled_size, spelled_capacity;
    uint32_t *by_spelling; /* hash table of ids + 1 */
    uint64_t by_spelling_mask;
    Slot *slots;
    uint64_t slots_mask, slots_used;
    Fresh *fresh;
    uint64_t fresh_size, fresh_capacity;
    Occurrence *occurrences;
    uint64_t occurrences_size, occurrences_capacity;
    Entry *queue;
    uint64_t queue_size, queue_capacity, serial;
    Merge *merges;
    uint64_t merges_size, merges_capacity;
    int failed; /* memory ran out */
} Trainer;

static const uint64_t EMPTY = UINT64_MAX;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Returns `items` with space for one more, or NULL, and then the trainer has failed. */
static void *grown(Trainer *trainer, void *items, uint64_t size, uint64_t *capacity, size_t item_size) {
    if (size < *capacity) return items;
    uint64_t doubled = *capacity ? *capacity + *capacity / 2 : 1024;
    void *larger = realloc(items, doubled * item_size);
    if (!larger) {
        trainer->failed = 1;
        return NULL;
    }
    *capacity = doubled;
    return larger;
}

#define APPEND(trainer, name, type, ...)                                                                                        \
    do {                                                                                                                         \
        type *items_ = grown(trainer, (trainer)->name, (trainer)->name##_size, &(trainer)->name##_capacity, sizeof(type));       \
        if (items_) {                                                                                                            \
            (trainer)->name = items_;                                                                                            \
            items_[(trainer)->name##_size++] = (type){__VA_ARGS__};                                                              \
        }                                                                                                                        \
    } while (0)

/* ---- the count of each pair ---- */

static Slot *slot_in(Slot *slots, uint64_t mask, uint64_t pair) {
    uint64_t index = mix(pair) & mask;
    while (slots[index].pair != pair && slots[index].pair != EMPTY) index = (index + 1) & mask;
    return slots + index;
}

static Slot *new_slots(uint64_t size) {
    Slot *slots = malloc(size * sizeof(Slot));
    if (slots)
        for (uint64_t i = 0; i < size; i++) slots[i] = (Slot){EMPTY, 0, 0, 0};
    return slots;
}

/* Returns the slot of a pair, which it may create; NULL if memory ran out. */
static Slot *slot_of(Trainer *trainer, uint64_t pair) {
    Slot *slot = slot_in(trainer->slots, trainer->slots_mask, pair);
    if (slot->pair == pair) return slot;
    if (trainer->slots_used * 3 > trainer->slots_mask * 2) {
        uint64_t mask = trainer->slots_mask * 2 + 1;
        Slot *slots = new_slots(mask + 1);
        if (!slots) {
            trainer->failed = 1;
            return NULL;
        }
        for (uint64_t i = 0; i <= trainer->slots_mask; i++)
            if (trainer->slots[i].pair != EMPTY) *slot_in(slots, mask, trainer->slots[i].pair) = trainer->slots[i];
        free(trainer->slots);
        trainer->slots = slots;
        trainer->slots_mask = mask;
        slot = slot_in(slots, mask, pair);
    }
    trainer->slots_used++;
    slot->pair = pair;
    return slot;
}

/* ---- the queue: a binary heap ---- */

static int precedes(const Entry *a, const Entry *b) {
    if (a->count != b->count) return a->count > b->count;
    if (a->pair != b->pair) return a->pair < b->pair;
    return a->serial < b->serial;
}

static void push(Trainer *trainer, Entry entry) {
    APPEND(trainer, queue, Entry, 0);
    if (trainer->failed) {
        free(entry.positions);
        return;
    }
    Entry *queue = trainer->queue;
    uint64_t place = trainer->queue_size - 1;
    for (; place && precedes(&entry, queue + (place - 1) / 2); place = (place - 1) / 2) queue[place] = queue[(place - 1) / 2];
    queue[place] = entry;
}

static Entry pop(Trainer *trainer) {
    Entry *queue = trainer->queue, first = queue[0], last = queue[--trainer->queue_size];
    uint64_t place = 0, child;
    while ((child = 2 * place + 1) < trainer->queue_size) {
        if (child + 1 < trainer->queue_size && precedes(queue + child + 1, queue + child)) child++;
        if (!precedes(queue + child, &last)) break;
        queue[place] = queue[child];
        place = child;
    }
    queue[place] = last;
    return first;
}

/* ---- new occurrences of pairs ---- */

static uint64_t pair_of(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }

/* Counts a new occurrence of a pair. */
static void add(Trainer *trainer, uint64_t pair, int64_t count, uint32_t position) {
    Slot *slot = slot_of(trainer, pair);
    if (!slot) return;
    slot->count += count;
    if (!slot->fresh) {
        APPEND(trainer, fresh, Fresh, pair, NULL, 0, 0, 0);
        if (trainer->failed) return;
        slot->fresh = (uint32_t)trainer->fresh_size;
    }
    Fresh *fresh = trainer->fresh + slot->fresh - 1;
    fresh->only = position;
    fresh->size++;
}

/* Allocates the positions of the pairs that have new occurrences. */
static void allocate_fresh(Trainer *trainer) {
    for (uint64_t i = 0; i < trainer->fresh_size && !trainer->failed; i++) {
        Fresh *fresh = trainer->fresh + i;
        if (fresh->size < 2 || slot_of(trainer, fresh->pair)->count <= 0) continue;
        fresh->positions = malloc(fresh->size * sizeof(uint32_t));
        if (!fresh->positions) trainer->failed = 1;
    }
}

static void fill_fresh(Trainer *trainer, uint64_t pair, uint32_t position) {
    Slot *slot = slot_of(trainer, pair);
    Fresh *fresh = trainer->fresh + slot->fresh - 1;
    if (fresh->positions) fresh->positions[fresh->filled++] = position;
}

/* Pushes the pairs that have new occurrences. */
static void push_fresh(Trainer *trainer) {
    for (uint64_t i = 0; i < trainer->fresh_size; i++) {
        Fresh fresh = trainer->fresh[i];
        Slot *slot = slot_of(trainer, fresh.pair);
        slot->fresh = 0;
        if (slot->count <= 0 || trainer->failed) {
            free(fresh.positions);
            continue;
        }
        slot->pushes++;
        push(trainer, (Entry){slot->count, fresh.pair, fresh.positions, fresh.only, fresh.size, trainer->serial++});
    }
    trainer->fresh_size = 0;
}

/* ---- tokens ---- */

/* Returns the id of the token that a pair spells, a new one if no token is spelled so. */
static uint32_t token_of(Trainer *trainer, uint32_t left, uint32_t right) {
    uint32_t length = trainer->lengths[left] + trainer->lengths[right];
    uint64_t start = trainer->spelled_size;
    while (start + length > trainer->spelled_capacity) {
        uint64_t capacity = trainer->spelled_capacity * 2;
        uint32_t *larger = realloc(trainer->spelled, capacity * sizeof(uint32_t));
        if (!larger) {
            trainer->failed = 1;
            return 0;
        }
        trainer->spelled = larger;
        trainer->spelled_capacity = capacity;
    }
    uint32_t *spelled = trainer->spelled + start;
    memcpy(spelled, trainer->spelled + trainer->spellings[left], trainer->lengths[left] * sizeof(uint32_t));
    memcpy(spelled + trainer->lengths[left], trainer->spelled + trainer->spellings[right],
           trainer->lengths[right] * sizeof(uint32_t));
    uint64_t hash = length;
    for (uint32_t i = 0; i < length; i++) hash = mix(hash + spelled[i]) * 0x9E3779B97F4A7C15u;
    uint64_t index = mix(hash) & trainer->by_spelling_mask;
    for (; trainer->by_spelling[index]; index = (index + 1) & trainer->by_spelling_mask) {
        uint32_t token = trainer->by_spelling[index] - 1;
        if (trainer->lengths[token] == length &&
            !memcmp(trainer->spelled + trainer->spellings[token], spelled, length * sizeof(uint32_t)))
            return token;
    }
    trainer->by_spelling[index] = trainer->tokens + 1;
    trainer->lengths[trainer->tokens] = length;
    trainer->spellings[trainer->tokens] = start;
    trainer->spelled_size = start + length;
    return trainer->tokens++;
}

/* Returns the count of the word at a position. */
static int64_t count_at(const Trainer *trainer, uint32_t position) {
    int64_t low = 0, high = trainer->runs;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (trainer->starts[middle] <= (int64_t)position) low = middle;
        else high = middle;
    }
    return trainer->counts[low];
}

/* Merges a pair at a position, if it is still there. */
static void merge_at(Trainer *trainer, uint32_t left, uint32_t right, uint32_t token, uint32_t position) {
    uint32_t *symbols = trainer->symbols;
    if (symbols[position] != left) return;
    uint32_t second = position + trainer->lengths[left];
    if (symbols[second] != right) return;
    uint32_t end = second + trainer->lengths[right], before = symbols[position - 1], after = symbols[end];
    int64_t count = count_at(trainer, position);
    if (before != BORDER) {
        Slot *slot = slot_of(trainer, pair_of(before, left));
        if (!slot) return;
        slot->count -= count;
        uint64_t pair = pair_of(before, token);
        add(trainer, pair, count, position - trainer->lengths[before]);
        APPEND(trainer, occurrences, Occurrence, pair, position - trainer->lengths[before]);
    }
    if (after != BORDER) {
        Slot *slot = slot_of(trainer, pair_of(right, after));
        if (!slot) return;
        slot->count -= count;
        uint64_t pair = pair_of(token, after);
        add(trainer, pair, count, position);
        APPEND(trainer, occurrences, Occurrence, pair, position);
    }
    symbols[second - 1] = symbols[second] = INSIDE;
    symbols[position] = symbols[end - 1] = token;
}

/* Merges a pair everywhere in the words of these positions. */
static void merge_in_words(Trainer *trainer, uint32_t left, uint32_t right, uint32_t token, const uint32_t *positions,
                           uint32_t size) {
    uint32_t word_end = 0;
    for (uint32_t i = 0; i < size; i++) {
        if (positions[i] < word_end) continue;
        uint32_t place = positions[i];
        while (trainer->symbols[place - 1] != BORDER) place--;
        while (trainer->symbols[place] != BORDER && !trainer->failed) {
            merge_at(trainer, left, right, token, place);
            place += trainer->lengths[trainer->symbols[place]];
        }
        word_end = place;
    }
}

/* ---- the interface ---- */

void tokenmill_merges_free(Trainer *trainer) {
    if (!trainer) return;
    for (uint64_t i = 0; i < trainer->queue_size; i++) free(trainer->queue[i].positions);
    for (uint64_t i = 0; i < trainer->fresh_size; i++) free(trainer->fresh[i].positions);
    free(trainer->lengths);
    free(trainer->spellings);
    free(trainer->spelled);
    free(trainer->by_spelling);
    free(trainer->slots);
    free(trainer->fresh);
    free(trainer->occurrences);
    free(trainer->queue);
    free(trainer->merges);
    free(trainer);
}

/* Prepares the training. `symbols` are words as ids of single characters, below `tokens`, with BORDER before the first word and
 * after each. They are changed. The words are sorted by count: run k of words with equal counts begins at `starts[k]`, and
 * `counts[k]` is its count. All three must exist until the end. Returns NULL if memory ran out. */
Trainer *tokenmill_merges_new(uint32_t *symbols, int64_t size, const int64_t *starts, const int64_t *counts, int64_t runs,
                              uint32_t tokens, uint32_t vocab_size, int64_t min_frequency) {
    Trainer *trainer = calloc(1, sizeof(Trainer));
    if (!trainer) return NULL;
    trainer->symbols = symbols;
    trainer->size = size;
    trainer->starts = starts;
    trainer->counts = counts;
    trainer->runs = runs;
    trainer->tokens = tokens;
    trainer->vocab_size = vocab_size;
    trainer->min_frequency = min_frequency;
    uint64_t capacity = (vocab_size > tokens ? vocab_size : tokens) + (uint64_t)1;
    uint64_t table_size = 1024;
    while (table_size < 2 * capacity) table_size *= 2;
    trainer->by_spelling_mask = table_size - 1;
    trainer->slots_mask = ((uint64_t)1 << 16) - 1;
    trainer->spelled_capacity = 8 * capacity;
    trainer->lengths = malloc(capacity * sizeof(uint32_t));
    trainer->spellings = malloc(capacity * sizeof(uint64_t));
    trainer->spelled = malloc(trainer->spelled_capacity * sizeof(uint32_t));
    trainer->by_spelling = calloc(table_size, sizeof(uint32_t));
    trainer->slots = new_slots(trainer->slots_mask + 1);
    if (!trainer->lengths || !trainer->spellings || !trainer->spelled || !trainer->by_spelling || !trainer->slots) {
        tokenmill_merges_free(trainer);
        return NULL;
    }
    for (uint32_t token = 0; token < tokens; token++) {
        trainer->lengths[token] = 1;
        trainer->spellings[token] = trainer->spelled_size;
        trainer->spelled[trainer->spelled_size++] = token;
    }
    for (int pass = 0; pass < 2 && !trainer->failed; pass++) {
        int64_t run = 0;
        for (int64_t i = 1; i + 1 < size && !trainer->failed; i++) {
            if (symbols[i] == BORDER || symbols[i + 1] == BORDER) continue;
            while (run + 1 < runs && starts[run + 1] <= i) run++;
            uint64_t pair = pair_of(symbols[i], symbols[i + 1]);
            if (pass) fill_fresh(trainer, pair, (uint32_t)i);
            else add(trainer, pair, counts[run], (uint32_t)i);
        }
        if (!pass) allocate_fresh(trainer);
    }
    push_fresh(trainer);
    if (!trainer->failed) return trainer;
    tokenmill_merges_free(trainer);
    return NULL;
}

/* Merges up to `most` pairs. Returns the number of merges so far; -1 - that number if these are all; INT64_MIN if memory ran out. */
int64_t tokenmill_merges_train(Trainer *trainer, int64_t most) {
    while (most > 0) {
        if (trainer->tokens >= trainer->vocab_size || !trainer->queue_size) return -1 - (int64_t)trainer->merges_size;
        Entry entry = pop(trainer);
        Slot *slot = slot_of(trainer, entry.pair);
        if (entry.count != slot->count) {
            entry.count = slot->count;
            push(trainer, entry);
            if (trainer->failed) return INT64_MIN;
            continue;
        }
        if (entry.count < 1 || entry.count < trainer->min_frequency) {
            push(trainer, entry);
            return -1 - (int64_t)trainer->merges_size;
        }
        uint32_t left = (uint32_t)(entry.pair >> 32), right = (uint32_t)entry.pair, token = token_of(trainer, left, right);
        const uint32_t *positions = entry.positions ? entry.positions : &entry.only;
        if (!trainer->failed) {
            APPEND(trainer, merges, Merge, left, right, token);
            trainer->occurrences_size = 0;
            if (slot->pushes > 1) merge_in_words(trainer, left, right, token, positions, entry.size);
            else
                for (uint32_t i = 0; i < entry.size && !trainer->failed; i++)
                    merge_at(trainer, left, right, token, positions[i]);
        }
        free(entry.positions);
        if (!trainer->failed) allocate_fresh(trainer);
        for (uint64_t i = 0; i < trainer->occurrences_size && !trainer->failed; i++)
            fill_fresh(trainer, trainer->occurrences[i].pair, trainer->occurrences[i].position);
        push_fresh(trainer);
        if (trainer->failed) return INT64_MIN;
        most--;
    }
    return (int64_t)trainer->merges_size;
}

/* Copies the merges: left, right and merged id of each. */
void tokenmill_merges_copy(const Trainer *trainer, uint32_t *merges) {
    memcpy(merges, trainer->merges, trainer->merges_size * sizeof(Merge));
}
