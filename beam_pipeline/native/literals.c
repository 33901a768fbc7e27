/* Finding strings, such as added tokens, in texts: from left to right, and the longest string at each position. */
#include "words.h"

enum { IGNORED = 1, LSTRIP = 2, RSTRIP = 4, SINGLE_WORD = 8 }; /* Option in literals.py */
enum { MOST_HEADS = 8, BLOCK = 16 };

typedef uint8_t Block __attribute__((vector_size(BLOCK)));

typedef struct {
    Node *nodes;
    uint8_t *options;        /* of each string */
    int32_t head_count;      /* the number of bytes with which strings begin, */
    Block heads[MOST_HEADS]; /* and blocks of each of them, unless they are more */
    uint64_t pairs[1024];    /* a bit for each two bytes with which a string, and perhaps the text after it, may begin */
} Strings;

void tokenmill_strings_free(void *sets) {
    Strings *set = sets;
    if (!set) return;
    free(set->nodes);
    free(set->options);
    free(set);
}

static uint32_t pair_of(const uint8_t *at) { return at[0] | (uint32_t)at[1] << 8; }

/* Makes a set of distinct strings in the order of their bytes, none of which is empty. `numbers` are 0, 1, ..., and `scores` do
 * not matter. NULL if there is not enough memory. */
void *tokenmill_strings_new(const uint8_t *strings, const int64_t *ends, const uint32_t *numbers, const double *scores,
                            const uint8_t *options, int64_t count) {
    void *memory = NULL;
    if (posix_memalign(&memory, sizeof(Block), sizeof(Strings))) return NULL;
    Strings *set = memset(memory, 0, sizeof(Strings));
    set->nodes = tokenmill_build_trie(strings, ends, numbers, scores, count);
    set->options = malloc((size_t)count + 1);
    if (!set->nodes || !set->options) {
        tokenmill_strings_free(set);
        return NULL;
    }
    memcpy(set->options, options, (size_t)count);
    int last_head = -1;
    for (int64_t i = 0, start = 0; i < count; start = ends[i++]) {
        uint8_t head = strings[start];
        for (int second = 0; second < 256; second++) {
            uint8_t pair[2] = {head, (uint8_t)second};
            if (ends[i] - start == 1 || strings[start + 1] == second)
                set->pairs[pair_of(pair) >> 6] |= (uint64_t)1 << (pair_of(pair) & 63);
        }
        if (head == last_head) continue;
        last_head = head;
        if (set->head_count < MOST_HEADS) memset(set->heads + set->head_count, head, sizeof(Block));
        set->head_count++;
    }
    return set;
}

/* The first position from `at` on where a string may begin; `end` if there is none. */
static inline int64_t next_candidate(const Strings *set, const uint8_t *text, int64_t at, int64_t end) {
    while (at < end) {
        if (set->head_count <= MOST_HEADS) {
            Block bytes, heads = {0};
            uint64_t halves[2];
            memcpy(&bytes, text + at, BLOCK);
            for (int i = 0; i < set->head_count; i++) heads |= (Block)(bytes == set->heads[i]);
            memcpy(halves, &heads, BLOCK);
            if (!(halves[0] | halves[1])) {
                at += BLOCK;
                continue;
            }
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
            at += halves[0] ? __builtin_clzll(halves[0]) >> 3 : 8 + (__builtin_clzll(halves[1]) >> 3);
#else
            at += halves[0] ? __builtin_ctzll(halves[0]) >> 3 : 8 + (__builtin_ctzll(halves[1]) >> 3);
#endif
        }
        uint32_t pair = pair_of(text + at);
        if (set->pairs[pair >> 6] >> (pair & 63) & 1) return at < end ? at : end;
        at++;
    }
    return end;
}

/* Whether a character is Unicode's White_Space. */
static int is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
    if (code >= 0x2000 && code < 0x3000)
        return code <= 0x200A || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F;
    return code == 0x85 || code == 0xA0 || code == 0x1680 || code == 0x3000;
}

static int64_t skip_space_before(const uint8_t *text, int64_t at, int64_t start) {
    for (int64_t before = at; before > start;) {
        do before--;
        while ((text[before] & 0xC0) == 0x80);
        if (!is_space(decode(text + before))) break;
        at = before;
    }
    return at;
}

static int64_t skip_space_after(const uint8_t *text, int64_t at, int64_t end) {
    while (at < end && is_space(decode(text + at))) at += char_size(text[at]);
    return at;
}

/* Finds the strings in texts of `data`, which begin and end there, and after which BLOCK bytes can be read. A string that is IGNORED
 * only hides others that it overlaps with. LSTRIP and RSTRIP add the white space before or after a string, where it does not belong
 * to the string before. A text with a SINGLE_WORD, or a string that begins within the white space of the one before, is not searched
 * further: the number of this match is -1.
 *
 * `matches` has four rows of `room` numbers: the index of the text, start, end, and the string's number. Returns the number
 * of matches; if it is more than `room`, only the first ones are written. */
WITH_POPCOUNT
int64_t tokenmill_strings_find(const void *sets, const uint8_t *data, const int64_t *starts, const int64_t *ends, int64_t texts,
                               int64_t *matches, int64_t room) {
    const Strings *set = sets;
    int64_t count = 0;
    for (int64_t i = 0; i < texts; i++) {
        int64_t end = ends[i], last_end = starts[i], at = starts[i];
        while ((at = next_candidate(set, data, at, end)) < end) {
            int64_t match_end = at, number = -1;
            const Node *node = set->nodes;
            for (int64_t next = at; next < end && (node = step(set->nodes, node, data[next]));) {
                next++;
                if (node->id < 0) continue;
                number = node->id;
                match_end = next;
            }
            if (number < 0) {
                at++;
                continue;
            }
            int options = set->options[number];
            int64_t match_start = at;
            at = match_end;
            if (options & IGNORED) continue;
            int is_unclear = options & SINGLE_WORD || match_start < last_end;
            if (is_unclear) number = -1;
            else if (options & LSTRIP) match_start = skip_space_before(data, match_start, last_end);
            if (options & RSTRIP) match_end = skip_space_after(data, match_end, end);
            if (count < room) {
                matches[count] = i;
                matches[room + count] = match_start;
                matches[2 * room + count] = match_end;
                matches[3 * room + count] = number;
            }
            count++;
            if (is_unclear) break;
            last_end = match_end;
        }
    }
    return count;
}
