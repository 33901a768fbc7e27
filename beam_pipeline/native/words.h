/* What the files of the native engine share: words.c, word_cache.c, splits.c, unigram.c, bpe.c, literals.c, characters.c
 * and texts.c. */
#ifndef TOKENMILL_WORDS_H
#define TOKENMILL_WORDS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_POPCOUNT __attribute__((target_clones("popcnt", "default")))
#else
#define WITH_POPCOUNT
#endif

enum { UNIGRAM, BPE, BYTE_BPE, WORDPIECE };       /* Kind in words.py */
enum { AT_MARKS, BETWEEN_TOKENS, UNITS, SPLITS }; /* how texts are cut, see `add_words` in words.c; Cut in words.py */

/* A node of a trie of pieces, see unigram.c. */
typedef struct {
    uint64_t bytes[4]; /* the set of bytes that lead on */
    uint32_t first;    /* the node of the least of these; those of the others follow */
    int32_t id;        /* of the piece that ends here; -1 if none does */
    double score;
} Node;

/* The node to which a byte leads; NULL if there is none. */
static inline __attribute__((always_inline)) const Node *step(const Node *nodes, const Node *node, uint8_t byte) {
    uint64_t bits = node->bytes[byte >> 6], bit = (uint64_t)1 << (byte & 63);
    if (!(bits & bit)) return NULL;
    uint32_t before = (uint32_t)__builtin_popcountll(bits & (bit - 1));
    for (int i = 0; i < byte >> 6; i++) before += (uint32_t)__builtin_popcountll(node->bytes[i]);
    return nodes + node->first + before;
}

/* A merge of BPE, see bpe.c. */
typedef struct {
    uint64_t pair; /* left id << 32 | right id; NO_PAIR in an empty place */
    uint32_t rank, id;
} Merge;

#define NO_PAIR UINT64_MAX
#define NO_RANK UINT32_MAX

/* An instruction of a pattern, see splits.c. */
typedef struct {
    int32_t operation;
    uint32_t classes; /* a bit for each class of characters that matches */
    int32_t minimum, maximum;
} Instruction;

/* A pre-tokenizer that splits. */
typedef struct {
    int32_t first, count;              /* its alternatives */
    int32_t keeps_matches, keeps_gaps; /* which pieces are words, or split further */
    int32_t by_bytes;                  /* whether its classes are those of bytes */
    uint32_t candidates[128];          /* which alternatives may begin with each ASCII character, a bit for each */
    /* LETTER and BEFORE_LETTERS where the first of them is a run of letters, after a character that may be missing, and that this
     * character is, or not; otherwise 0. */
    uint8_t beginnings[256];
} Level;

enum { LETTER = 1, BEFORE_LETTERS };

/* What a splitter of single characters does with one. */
typedef enum { STAYS, IS_DROPPED, IS_A_WORD } Role;

typedef struct {
    uint32_t classes; /* of the characters with which it begins */
    uint32_t start;   /* its first instruction */
    /* If it is a character that may be missing, and one or more others, their classes; otherwise 0. */
    uint32_t optional, repeated;
} Alternative;

enum { MOST_LEVELS = 8, BLOCKS = 0x1100 };

typedef struct {
    Level levels[MOST_LEVELS];
    int32_t level_count;
    Alternative *alternatives;
    Instruction *instructions;
    uint32_t *blocks[BLOCKS]; /* the classes of 256 characters each; NULL where they are not known yet */
    uint32_t ascii[256];      /* the classes of ASCII characters; none for other bytes */
    uint32_t bytes[256];      /* the classes of bytes */
    uint32_t letters;         /* the classes whose ASCII characters are the letters */
    /* Whether all levels are single characters between which all is kept, and each ASCII character's `Role` then. */
    int are_single, letters_stay;
    uint8_t roles[128];
} Splitter;

typedef struct Cache Cache; /* see word_cache.h */

typedef struct {
    Cache *cache;
    int32_t kind, cut, has_prefix, fuses_unknown;
    int64_t unknown_id; /* -1 if there is none */
    double unknown_score;
    int64_t byte_ids[256]; /* of the tokens that stand for bytes of unknown characters; -1 where there is none */
    Node *nodes;
    int64_t most_chars; /* of a word of WordPiece */
    Merge *merges;
    uint64_t merge_mask;
    uint64_t *likely;  /* a bit for each of 4 times as many hashes: most pairs are not merged, and this is small */
    int32_t *symbols;  /* the id of each character, or byte, that is a token, plus 1 */
    int32_t *last_symbols; /* the same at the end of a word, if that makes a difference */
    uint32_t *before;  /* characters before marks within tokens, ascending */
    int64_t before_count;
    Splitter *splitter;
} Model;

/* What `tokenmill_match` searches. */
typedef struct {
    const Splitter *splitter;
    const uint32_t *single; /* `ascii` or `bytes` of the splitter */
    const uint8_t *text;
    int64_t end;
    int by_bytes;
    uint8_t *missing; /* [BLOCKS + 1], set where a block is needed and not known; at last, whether there is one */
} Matcher;

/* Memory for an algorithm, which grows. */
typedef struct {
    void *memory;
    size_t size;
} Scratch;

/* Memory of at least `size` bytes, whose content is lost; NULL if there is not enough. */
static inline void *reserve(Scratch *scratch, size_t size) {
    if (size > scratch->size) {
        free(scratch->memory);
        scratch->size = 0;
        if ((scratch->memory = malloc(2 * size))) scratch->size = 2 * size;
    }
    return scratch->memory;
}

/* The first byte at or after `place` that is no ASCII letter, or one after `end`. */
static inline const uint8_t *end_of_letters(const uint8_t *place, const uint8_t *end) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    for (; place < end; place += 8) {
        uint64_t bytes, lower, others;
        memcpy(&bytes, place, 8);
        lower = (bytes | 0x20 * ones) & ~highs;
        /* The high bit of a sum is set if the byte is at least `a`, or above `z`. */
        others = ~((lower + (0x80 - 'a') * ones) & ~(lower + (0x7F - 'z') * ones) & ~bytes) & highs;
        if (others) return place + (__builtin_ctzll(others) >> 3);
    }
#else
    while (place < end && (uint8_t)((*place | 0x20) - 'a') < 26) place++;
#endif
    return place;
}

static inline uint64_t load(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static inline int char_size(uint8_t first) { return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4; }

static inline uint32_t decode(const uint8_t *at) {
    switch (char_size(*at)) {
    case 1: return at[0];
    case 2: return (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
    case 3: return (at[0] & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    default: return (at[0] & 0x07u) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 | (at[3] & 0x3Fu);
    }
}

/* Each writes the ids of a word, and returns their number; -1 if there is not enough memory. */
HIDDEN int64_t tokenmill_encode_unigram(const Model *model, Scratch *scratch, const uint8_t *word, int64_t size, uint32_t *ids);
HIDDEN int64_t tokenmill_encode_bpe(const Model *model, Scratch *scratch, const uint8_t *word, int64_t size, uint32_t *ids);
HIDDEN int64_t tokenmill_encode_wordpiece(const Model *model, const uint8_t *word, int64_t size, uint32_t *ids);

/* The trie of sorted, distinct pieces, which are not empty. NULL if there is not enough memory. */
HIDDEN Node *tokenmill_build_trie(const uint8_t *text, const int64_t *ends, const uint32_t *ids, const double *scores,
                                  int64_t count);
/* The id of a piece, or -1. */
HIDDEN int64_t tokenmill_id_of_piece(const Model *model, const uint8_t *word, int64_t size);
/* Adds the merges to a model. Returns whether there is enough memory. */
HIDDEN int tokenmill_set_merges(Model *model, const uint32_t *merges, int64_t count);
/* A table that is accessed in no order, in word_cache.c; NULL if there is not enough memory. Free it with `free`. */
HIDDEN void *tokenmill_allocate_table(size_t size);

/* The end of the match of a level's pattern that begins at `at`; -1 if there is none. */
HIDDEN int64_t tokenmill_match(Matcher *matcher, const Level *level, int64_t at);
HIDDEN uint8_t tokenmill_beginning(const Splitter *splitter, const Level *level, uint8_t character);
/* The classes of the character of several bytes at `at`. */
HIDDEN uint32_t tokenmill_classes_of_long(Matcher *matcher, int64_t at);
/* Whether each level of a splitter is a single character of a class, between which all is kept. */
HIDDEN int tokenmill_are_single(const Splitter *splitter);
/* What such a splitter does with a character of these classes. */
HIDDEN Role tokenmill_role(const Splitter *splitter, uint32_t classes);
/* The alternatives of a level, a bit for each, that may begin with a character of these classes. */
HIDDEN uint32_t tokenmill_candidates(const Splitter *splitter, const Level *level, uint32_t classes);

#endif
