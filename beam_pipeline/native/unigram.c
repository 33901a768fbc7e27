/* Unigram and WordPiece models, exactly as the crate `tokenizers` has them (models/unigram/model.rs, models/wordpiece/mod.rs). */
#include "words.h"

/* ---- The trie of a Unigram model ---- */

typedef struct {
    int64_t start, end; /* of the sorted pieces that lead to a node */
    int64_t depth;
} Range;

/* Built level by level. */
Node *tokenmill_build_trie(const uint8_t *text, const int64_t *ends, const uint32_t *ids, const double *scores,
                           int64_t count) {
    size_t most = 1;
    for (int64_t i = 0; i < count; i++) { /* the bytes that a piece does not share with the one before */
        int64_t start = i ? ends[i - 1] : 0, before = i > 1 ? ends[i - 2] : 0, shared = 0;
        while (i && before + shared < start && start + shared < ends[i] && text[before + shared] == text[start + shared])
            shared++;
        most += (size_t)(ends[i] - start - shared);
    }
    Node *nodes = tokenmill_allocate_table(most * sizeof(Node));
    Range *ranges = malloc(most * sizeof(Range));
    if (!nodes || !ranges) {
        free(nodes);
        free(ranges);
        return NULL;
    }
    memset(nodes, 0, most * sizeof(Node));
    size_t made = 1;
    ranges[0] = (Range){0, count, 0};
    for (size_t i = 0; i < made; i++) {
        Range range = ranges[i];
        Node *node = nodes + i;
        node->id = -1;
        node->first = (uint32_t)made;
        int64_t piece = range.start;
        if (piece < range.end && ends[piece] - (piece ? ends[piece - 1] : 0) == range.depth && range.depth) {
            node->id = (int32_t)ids[piece];
            node->score = scores[piece];
            piece++;
        }
        while (piece < range.end) {
            uint8_t byte = text[(piece ? ends[piece - 1] : 0) + range.depth];
            int64_t start = piece;
            while (piece < range.end && text[(piece ? ends[piece - 1] : 0) + range.depth] == byte) piece++;
            node->bytes[byte >> 6] |= (uint64_t)1 << (byte & 63);
            ranges[made++] = (Range){start, piece, range.depth + 1};
        }
    }
    free(ranges);
    return nodes;
}

typedef struct {
    double score;
    int32_t start, id; /* start: -1 if no token ends here; id: -1 if it is unknown */
} Best;

int64_t tokenmill_id_of_piece(const Model *model, const uint8_t *word, int64_t size) {
    const Node *node = model->nodes;
    for (int64_t i = 0; i < size && node; i++) node = step(model->nodes, node, word[i]);
    return node ? node->id : -1;
}

WITH_POPCOUNT
int64_t tokenmill_encode_unigram(const Model *model, Scratch *scratch, const uint8_t *word, int64_t size, uint32_t *ids) {
    Best *best = reserve(scratch, (size_t)(size + 1) * sizeof(Best));
    if (!best) return -1;
    for (int64_t i = 0; i <= size; i++) best[i].start = -1;
    best[0].score = 0;
    for (int64_t start = 0; start < size;) {
        int64_t char_end = start + (model->cut == UNITS ? 1 : char_size(word[start]));
        double score = best[start].score;
        int has_single = 0;
        const Node *node = model->nodes;
        for (int64_t end = start; end < size;) {
            if (!(node = step(model->nodes, node, word[end++]))) break;
            if (node->id < 0) continue;
            double sum = node->score + score;
            if (best[end].start < 0 || sum > best[end].score) best[end] = (Best){sum, (int32_t)start, node->id};
            has_single |= end == char_end;
        }
        if (!has_single) {
            double sum = model->unknown_score + score;
            if (best[char_end].start < 0 || sum > best[char_end].score)
                best[char_end] = (Best){sum, (int32_t)start, (int32_t)model->unknown_id};
        }
        start = char_end;
    }
    int64_t count = 0;
    for (int64_t end = size; end > 0;) { /* from the last to the first */
        int64_t start = best[end].start;
        if (best[end].id != model->unknown_id) {
            ids[count++] = (uint32_t)best[end].id;
        } else {
            while (start > 0 && best[start].id == model->unknown_id) start = best[start].start;
            int64_t id = tokenmill_id_of_piece(model, word + start, end - start), bytes = end - start;
            if (id < 0)
                while (bytes && model->byte_ids[word[start + bytes - 1]] >= 0) bytes--;
            if (id < 0 && !bytes)
                for (int64_t i = end; i > start; i--) ids[count++] = (uint32_t)model->byte_ids[word[i - 1]];
            else
                ids[count++] = (uint32_t)(id < 0 ? model->unknown_id : id);
        }
        end = start;
    }
    for (int64_t i = 0; i < count / 2; i++) {
        uint32_t last = ids[count - 1 - i];
        ids[count - 1 - i] = ids[i];
        ids[i] = last;
    }
    return count;
}

/* ---- WordPiece ---- */

/* Takes the longest piece again and again. Pieces within a word begin with CONTINUING, instead of a prefix such as `##`. */
WITH_POPCOUNT
int64_t tokenmill_encode_wordpiece(const Model *model, const uint8_t *word, int64_t size, uint32_t *ids) {
    enum { CONTINUING = 0xFF };
    int64_t chars = 0, count = 0;
    for (int64_t i = 0; i < size; i++) chars += (word[i] & 0xC0) != 0x80;
    const Node *continuing = step(model->nodes, model->nodes, CONTINUING);
    for (int64_t start = 0, end; start < size && chars <= model->most_chars; start = end) {
        const Node *node = start ? continuing : model->nodes;
        int64_t id = -1;
        end = start;
        for (int64_t i = start; node && i < size && (node = step(model->nodes, node, word[i++]));) {
            if (node->id < 0) continue;
            id = node->id;
            end = i;
        }
        if (id < 0) break;
        ids[count++] = (uint32_t)id;
        if (end == size) return count;
    }
    ids[0] = (uint32_t)model->unknown_id;
    return 1;
}
