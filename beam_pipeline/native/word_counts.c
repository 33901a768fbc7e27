/* Counting the words of texts: plain C without Python's API, which `words.py` calls by ctypes.
 *
 * tokenization/word_counts.py defines what a word is.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The class of each character, as in `words.py`. */
enum {
    SPACE,  /* the last of a run of spaces is left to what follows, and a single " " belongs to the word after it */
    BLANK,  /* other white space: a run is a word */
    DROP,   /* is in no word */
    SINGLE, /* is a word */
    KINDS   /* from here on: a run of characters of one class is a word */
};

enum { LONGEST_WORD = 1 << 16 }; /* bytes, as in `word_counts.py` */

typedef struct {
    uint64_t start; /* in `bytes` */
    uint64_t count; /* 0: the slot is free */
    uint32_t size;
    uint32_t hash;
} Word;

typedef struct {
    const uint8_t *classes;
    int contractions;
    Word *words;
    uint64_t mask, used;
    uint8_t *bytes;
    uint64_t bytes_size, bytes_capacity;
    int failed; /* memory ran out */
} Counter;

static Word *new_words(uint64_t size) { return calloc(size, sizeof(Word)); }

static uint64_t hash_of(const uint8_t *data, uint64_t size) {
    uint64_t hash = size * 0x9E3779B97F4A7C15u;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t part;
        memcpy(&part, data, 8);
        hash = (hash ^ part) * 0xBF58476D1CE4E5B9u;
        hash ^= hash >> 29;
    }
    uint64_t part = 0;
    memcpy(&part, data, size);
    hash = (hash ^ part) * 0x94D049BB133111EBu;
    return hash ^ hash >> 32;
}

static void grow(Counter *counter) {
    uint64_t mask = counter->mask * 2 + 1;
    Word *words = new_words(mask + 1);
    if (!words) {
        counter->failed = 1;
        return;
    }
    for (uint64_t i = 0; i <= counter->mask; i++) {
        Word word = counter->words[i];
        if (!word.count) continue;
        uint64_t index = word.hash & mask;
        while (words[index].count) index = (index + 1) & mask;
        words[index] = word;
    }
    free(counter->words);
    counter->words = words;
    counter->mask = mask;
}

static void count_part(Counter *counter, const uint8_t *data, uint64_t size) {
    uint32_t hash = (uint32_t)hash_of(data, size);
    uint64_t index = hash & counter->mask;
    for (;; index = (index + 1) & counter->mask) {
        Word *word = counter->words + index;
        if (!word->count) break;
        if (word->hash == hash && word->size == size && !memcmp(counter->bytes + word->start, data, size)) {
            word->count++;
            return;
        }
    }
    if (counter->bytes_size + size > counter->bytes_capacity) {
        uint64_t capacity = counter->bytes_capacity * 2 + size;
        uint8_t *larger = realloc(counter->bytes, capacity);
        if (!larger) {
            counter->failed = 1;
            return;
        }
        counter->bytes = larger;
        counter->bytes_capacity = capacity;
    }
    memcpy(counter->bytes + counter->bytes_size, data, size);
    counter->words[index] = (Word){counter->bytes_size, 1, (uint32_t)size, hash};
    counter->bytes_size += size;
    if (++counter->used * 3 > counter->mask * 2) grow(counter);
}

/* Counts a word, in parts if it is long. */
static void count(Counter *counter, const uint8_t *data, uint64_t size) {
    while (size > LONGEST_WORD && !counter->failed) {
        uint64_t part = LONGEST_WORD;
        while ((data[part] & 0xC0) == 0x80) part--;
        count_part(counter, data, part);
        data += part;
        size -= part;
    }
    count_part(counter, data, size);
}

/* Returns the class of the character at `*i` of valid UTF-8, and moves `*i` behind it. */
static inline uint8_t next(const Counter *counter, const uint8_t *text, int64_t *i) {
    uint8_t byte = text[*i];
    if (byte < 0x80) {
        *i += 1;
        return counter->classes[byte];
    }
    uint32_t code;
    if (byte < 0xE0) {
        code = (uint32_t)(byte & 0x1F) << 6 | (text[*i + 1] & 0x3F);
        *i += 2;
    } else if (byte < 0xF0) {
        code = (uint32_t)(byte & 0x0F) << 12 | (uint32_t)(text[*i + 1] & 0x3F) << 6 | (text[*i + 2] & 0x3F);
        *i += 3;
    } else {
        code = (uint32_t)(byte & 0x07) << 18 | (uint32_t)(text[*i + 1] & 0x3F) << 12 | (uint32_t)(text[*i + 2] & 0x3F) << 6 |
               (text[*i + 3] & 0x3F);
        *i += 4;
    }
    return counter->classes[code];
}

/* Returns the bytes of the contraction at the beginning of a text, as in GPT-2's pattern: 's 't 'm 'd 're 've 'll. */
static int64_t contraction(const uint8_t *text, int64_t size) {
    if (size < 2 || text[0] != '\'') return 0;
    uint8_t a = text[1], b = size > 2 ? text[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Returns the end of the run of characters of a class. `*last` gets the start of its last one. */
static int64_t run_end(const Counter *counter, const uint8_t *text, int64_t i, int64_t size, uint8_t class, int64_t *last) {
    while (i < size) {
        int64_t end = i;
        if (next(counter, text, &end) != class) break;
        *last = i;
        i = end;
    }
    return i;
}

static void count_text(Counter *counter, const uint8_t *text, int64_t size) {
    for (int64_t i = 0; i < size && !counter->failed;) {
        int64_t start = i, last = i;
        if (counter->contractions && text[i] == '\'' && (i += contraction(text + i, size - i)) > start) {
            count(counter, text + start, (uint64_t)(i - start));
            continue;
        }
        uint8_t class = next(counter, text, &i);
        if (text[start] == ' ' && class == SPACE && i < size) {
            int64_t after = i;
            uint8_t follower = next(counter, text, &after);
            if (follower >= KINDS) {
                class = follower;
                i = after;
            }
        }
        if (class == DROP) continue;
        if (class != SINGLE) i = run_end(counter, text, i, size, class, &last);
        if (class == SPACE && i < size && last > start) i = last;
        count(counter, text + start, (uint64_t)(i - start));
    }
}

void tokenmill_words_free(Counter *counter) {
    if (!counter) return;
    free(counter->words);
    free(counter->bytes);
    free(counter);
}

/* Prepares the counting. `classes` has the class of each code point, and must exist until the end. `contractions`: whether those of
 * English are words. Returns NULL if memory ran out. */
Counter *tokenmill_words_new(const uint8_t *classes, int32_t contractions) {
    Counter *counter = calloc(1, sizeof(Counter));
    if (!counter) return NULL;
    counter->classes = classes;
    counter->contractions = contractions;
    counter->mask = ((uint64_t)1 << 16) - 1;
    counter->bytes_capacity = (uint64_t)1 << 20;
    counter->words = new_words(counter->mask + 1);
    counter->bytes = malloc(counter->bytes_capacity);
    if (counter->words && counter->bytes) return counter;
    tokenmill_words_free(counter);
    return NULL;
}

/* Counts the words of texts, which are valid UTF-8. Text k is `data[ends[k]:ends[k + 1]]`; each is below 4 GiB. Returns 0, or -1
 * if memory ran out. */
int32_t tokenmill_words_count(Counter *counter, const uint8_t *data, const int64_t *ends, int64_t texts) {
    for (int64_t k = 0; k < texts && !counter->failed; k++) count_text(counter, data + ends[k], ends[k + 1] - ends[k]);
    return counter->failed ? -1 : 0;
}

/* `sizes` gets the number of different words, and of their bytes. */
void tokenmill_words_size(const Counter *counter, int64_t *sizes) {
    sizes[0] = (int64_t)counter->used;
    sizes[1] = (int64_t)counter->bytes_size;
}

/* Copies the words and their counts, in any order. `ends` gets 0 and the end of each word in `bytes`. */
void tokenmill_words_copy(const Counter *counter, uint8_t *bytes, int64_t *ends, int64_t *counts) {
    int64_t end = 0;
    *ends++ = 0;
    for (uint64_t i = 0; i <= counter->mask; i++) {
        Word word = counter->words[i];
        if (!word.count) continue;
        memcpy(bytes + end, counter->bytes + word.start, word.size);
        end += word.size;
        *ends++ = end;
        *counts++ = (int64_t)word.count;
    }
}
