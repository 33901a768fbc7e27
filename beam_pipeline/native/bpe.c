/* BPE models, exactly as the crate `tokenizers` has them (models/bpe/{model,word}.rs). */
#include "words.h"

enum { FEW_SYMBOLS = 48 };

static const Merge NO_MERGE = {NO_PAIR, NO_RANK, 0};

/* The hash of a pair. Its lower bits are the place in `merges`, all of it that in `likely`. */
static uint64_t hash_pair(const Model *model, uint64_t pair) {
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    return (hash ^ hash >> 32) & (4 * model->merge_mask + 3);
}

static Merge *place_of(const Model *model, uint64_t pair, uint64_t hash) {
    for (uint64_t i = hash & model->merge_mask;; i = (i + 1) & model->merge_mask) {
        Merge *merge = model->merges + i;
        if (merge->pair == pair || merge->pair == NO_PAIR) return merge;
    }
}

/* The merge of a pair, with NO_RANK if there is none. */
static const Merge *find_merge(const Model *model, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right, hash = hash_pair(model, pair);
    if (!(model->likely[hash >> 6] >> (hash & 63) & 1)) return &NO_MERGE;
    return place_of(model, pair, hash);
}

/* Writes the ids of a word before any merge, and returns their number. As in `tokenizers`, bytes do not end a run of unknown
 * characters, and come before its token. */
static int64_t first_symbols(const Model *model, const uint8_t *word, int64_t size, uint32_t *ids) {
    int64_t count = 0;
    int is_unknown = 0; /* whether an unknown token is still to be written */
    for (int64_t i = 0, width; i < size; i += width) {
        width = model->kind == BYTE_BPE ? 1 : char_size(word[i]);
        const int32_t *symbols = model->last_symbols && i + width == size ? model->last_symbols : model->symbols;
        int32_t symbol = symbols[model->kind == BYTE_BPE ? word[i] : decode(word + i)];
        int64_t known = symbol ? width : 0;
        while (known < width && model->byte_ids[word[i + known]] >= 0) known++;
        if (known == width && !symbol) {
            for (int64_t k = 0; k < width; k++) ids[count++] = (uint32_t)model->byte_ids[word[i + k]];
            continue;
        }
        if (is_unknown && (symbol || !model->fuses_unknown)) ids[count++] = (uint32_t)model->unknown_id;
        if (symbol) ids[count++] = (uint32_t)symbol - 1;
        is_unknown = !symbol && model->unknown_id >= 0;
    }
    if (is_unknown) ids[count++] = (uint32_t)model->unknown_id;
    return count;
}

/* Merges the pair with the least rank, the first of them, until there is none. Returns the number of ids left. */
static int64_t merge_few(const Model *model, uint32_t *ids, int64_t count) {
    uint32_t ranks[FEW_SYMBOLS], merged[FEW_SYMBOLS];
    for (int64_t i = 0; i + 1 < count; i++) {
        const Merge *merge = find_merge(model, ids[i], ids[i + 1]);
        ranks[i] = merge->rank;
        merged[i] = merge->id;
    }
    while (count > 1) {
        int64_t least = 0;
        for (int64_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[least]) least = i;
        if (ranks[least] == NO_RANK) break;
        ids[least] = merged[least];
        count--;
        for (int64_t i = least + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1];
            merged[i] = merged[i + 1];
        }
        for (int64_t i = least ? least - 1 : 0; i <= least && i + 1 < count; i++) {
            const Merge *merge = find_merge(model, ids[i], ids[i + 1]);
            ranks[i] = merge->rank;
            merged[i] = merge->id;
        }
    }
    return count;
}

typedef struct {
    uint32_t rank, place, right; /* the place of the left symbol, and the ids of both when it was put on the heap */
    uint32_t left;
} Candidate;

static int comes_before(const Candidate *a, const Candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void push(Candidate *heap, int64_t *size, Candidate candidate) {
    int64_t i = (*size)++;
    for (; i && comes_before(&candidate, heap + (i - 1) / 2); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = candidate;
}

static Candidate pop(Candidate *heap, int64_t *size) {
    Candidate first = heap[0], last = heap[--*size];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < *size; i = child) {
        if (child + 1 < *size && comes_before(heap + child + 1, heap + child)) child++;
        if (!comes_before(heap + child, &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

static void propose(const Model *model, Candidate *heap, int64_t *size, const uint32_t *ids, uint32_t left, uint32_t right) {
    const Merge *merge = find_merge(model, ids[left], ids[right]);
    if (merge->rank != NO_RANK) push(heap, size, (Candidate){merge->rank, left, ids[right], ids[left]});
}

/* The same with a heap, for many symbols. Returns -1 if there is not enough memory. */
static int64_t merge_many(const Model *model, Scratch *scratch, uint32_t *ids, int64_t count) {
    const uint32_t none = UINT32_MAX;
    size_t links = 2 * (size_t)count * sizeof(uint32_t);
    void *block = reserve(scratch, links + 3 * (size_t)count * sizeof(Candidate));
    if (!block) return -1;
    uint32_t *next = block, *previous = next + count;
    Candidate *heap = (Candidate *)(previous + count);
    int64_t size = 0;
    for (int64_t i = 0; i < count; i++) {
        next[i] = i + 1 < count ? (uint32_t)i + 1 : none;
        previous[i] = i ? (uint32_t)i - 1 : none;
        if (i + 1 < count) propose(model, heap, &size, ids, (uint32_t)i, (uint32_t)i + 1);
    }
    while (size) { /* each merge takes one candidate away and adds at most two, so there are at most 3 * count */
        Candidate top = pop(heap, &size);
        uint32_t left = top.place, right = next[left];
        if (previous[left] == left || right == none || ids[left] != top.left || ids[right] != top.right) continue;
        ids[left] = find_merge(model, ids[left], ids[right])->id;
        next[left] = next[right];
        if (next[right] != none) previous[next[right]] = left;
        previous[right] = right; /* it is gone */
        if (previous[left] != none) propose(model, heap, &size, ids, previous[left], left);
        if (next[left] != none) propose(model, heap, &size, ids, left, next[left]);
    }
    int64_t kept = 0;
    for (uint32_t i = 0; i != none; i = next[i]) ids[kept++] = ids[i];
    return kept;
}

int64_t tokenmill_encode_bpe(const Model *model, Scratch *scratch, const uint8_t *word, int64_t size, uint32_t *ids) {
    if (model->nodes) { /* the model ignores merges if the word is a token */
        int64_t id = tokenmill_id_of_piece(model, word, size);
        if (id >= 0) {
            ids[0] = (uint32_t)id;
            return 1;
        }
    }
    int64_t count = first_symbols(model, word, size, ids);
    return count <= FEW_SYMBOLS ? merge_few(model, ids, count) : merge_many(model, scratch, ids, count);
}

int tokenmill_set_merges(Model *model, const uint32_t *merges, int64_t count) {
    uint64_t places = 16;
    while (places < 2 * (uint64_t)count) places *= 2;
    model->merge_mask = places - 1;
    model->merges = tokenmill_allocate_table(places * sizeof(Merge));
    model->likely = calloc(places / 16, sizeof(uint64_t));
    if (!model->merges || !model->likely) return 0;
    for (uint64_t i = 0; i < places; i++) model->merges[i] = (Merge){NO_PAIR, NO_RANK, 0};
    for (int64_t i = 0; i < count; i++, merges += 3) {
        uint64_t pair = (uint64_t)merges[0] << 32 | merges[1], hash = hash_pair(model, pair);
        *place_of(model, pair, hash) = (Merge){pair, (uint32_t)i, merges[2]};
        model->likely[hash >> 6] |= (uint64_t)1 << (hash & 63);
    }
    return 1;
}
