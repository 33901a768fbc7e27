/* Tokenizing words: plain C without Python's API, which `words.py` calls by ctypes.
 *
 * A text is cut into words, between which no token reaches. The ids of a word are computed once and then looked up in a
 * cache. Threads share a model and its cache; each thread has a state of its own.
 */
#include "word_cache.h"

enum {
    READ_BEYOND = 16, /* READ_BEYOND in texts.py */
    AHEAD = 32        /* words whose slots are fetched from memory at the same time */
};

typedef struct {
    const Model *model;
    Cache cache;     /* the model's, whose places stay where they are during a call */
    Scratch word;    /* a word with its marks as spaces */
    Scratch scratch; /* of the model's algorithm */
    Pending ahead[AHEAD];
    int pending;
    uint32_t *ids; /* of the texts so far */
    int64_t count, room;
    uint8_t *missing; /* see `Matcher` */
} State;

static int64_t encode_word(State *state, const uint8_t *word, int64_t size, uint32_t *ids) {
    const Model *model = state->model;
    if (model->kind == UNIGRAM) return tokenmill_encode_unigram(model, &state->scratch, word, size, ids);
    if (model->kind == WORDPIECE) return tokenmill_encode_wordpiece(model, word, size, ids);
    return tokenmill_encode_bpe(model, &state->scratch, word, size, ids);
}

/* Writes the ids of a word, and returns their number; -1 if there is not enough memory. There is room for INLINE_IDS. */
static inline int64_t look_up(State *state, const Cache *cache, const Pending *pending, uint32_t *ids) {
    if (pending->size > MOST_CACHED_BYTES) return encode_word(state, pending->word, pending->size, ids);
    int64_t count = find_word(cache, pending, ids);
    if (count >= 0) return count;
    count = encode_word(state, pending->word, pending->size, ids);
    if (count >= 0) tokenmill_cache_word(state->model->cache, pending, ids, count);
    return count;
}

/* ---- Words ---- */

static int is_mark(const uint8_t *at) { return at[0] == 0xE2 && at[1] == 0x96 && at[2] == 0x81; }

static int is_before_mark(const Model *model, const uint8_t *text, int64_t at) {
    int64_t start = at - 1;
    while ((text[start] & 0xC0) == 0x80) start--;
    uint32_t code = decode(text + start);
    int64_t low = 0, high = model->before_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (model->before[middle] < code) low = middle + 1;
        else high = middle;
    }
    return low < model->before_count && model->before[low] == code;
}

/* The first byte at or after `at` that is a space, a line feed, or E2, with which the mark begins; `end` if there is none. */
static int64_t next_candidate(const uint8_t *text, int64_t at, int64_t end, int with_lines) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    for (; at < end; at += 8) {
        uint64_t bytes = load(text + at);
        uint64_t spaces = bytes ^ ones * ' ', others = bytes ^ ones * (with_lines ? '\n' : 0xE2);
        uint64_t zeros = ((spaces - ones) & ~spaces) | ((others - ones) & ~others);
        if (zeros & highs) { /* the lowest one is exact */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
            for (int64_t i = at;; i++)
                if (text[i] == ' ' || text[i] == (with_lines ? '\n' : 0xE2)) return i < end ? i : end;
#else
            at += __builtin_ctzll(zeros & highs) >> 3;
            return at < end ? at : end;
#endif
        }
    }
    return end;
}

static int mark_size(const uint8_t *text, int64_t at, int64_t end) {
    return text[at] == ' ' ? 1 : end - at >= 3 && is_mark(text + at) ? 3 : 0;
}

static int is_white(uint8_t byte) { return byte == ' ' || byte == '\n'; }

/* Returns the end of the word that begins at `at`. `long_marks` counts its marks `▁`, which are not spaces.
 *
 * AT_MARKS: a word begins at each mark, a space or `▁`.
 * BETWEEN_TOKENS: it begins at a mark between two characters that are none, if no token has the first one before a mark.
 * UNITS: see tokenization/byte_units.py. */
static int64_t end_of_word(const Model *model, const uint8_t *text, int64_t at, int64_t end, int *long_marks) {
    int64_t start = at;
    if (model->cut == UNITS) {
        if (!is_white(text[at])) return next_candidate(text, at, end, 1);
        while (at < end && is_white(text[at])) at++;
        if (at == end) return end;
        return at - start > 1 ? at - 1 : next_candidate(text, at, end, 1);
    }
    int first = mark_size(text, at, end);
    *long_marks += first == 3;
    at += first ? first : 1;
    for (int is_after_mark = first != 0;;) {
        int64_t before = at;
        at = next_candidate(text, at, end, 0);
        if (at > before) is_after_mark = 0;
        if (at == end) return end;
        int size = mark_size(text, at, end);
        if (size) {
            if (model->cut == AT_MARKS) return at;
            if (!is_after_mark && at + size < end && !mark_size(text, at + size, end) && !is_before_mark(model, text, at))
                return at;
            *long_marks += size == 3;
        }
        is_after_mark = size != 0;
        at += size ? size : 1;
    }
}

/* A word as a piece of the model's tokens, in which the mark is a space, and with another space before it if `prefix`. NULL if
 * there is not enough memory. */
static const uint8_t *with_spaces(State *state, const uint8_t *word, int64_t *size, int prefix) {
    uint8_t *copy = reserve(&state->word, (size_t)*size + READ_BEYOND + 1);
    if (!copy) return NULL;
    int64_t copied = 0;
    if (prefix) copy[copied++] = ' ';
    for (int64_t i = 0; i < *size;) {
        int is_long = mark_size(word, i, *size) == 3;
        copy[copied++] = is_long ? ' ' : word[i];
        i += is_long ? 3 : 1;
    }
    *size = copied;
    return copy;
}

static int flush(State *state) {
    int64_t most = INLINE_IDS;
    for (int i = 0; i < state->pending; i++) most += state->ahead[i].size; /* an id for each byte */
    if (most > state->room - state->count) {
        int64_t room = 2 * (state->count + most);
        uint32_t *ids = realloc(state->ids, (size_t)room * sizeof(uint32_t));
        if (!ids) return -1;
        state->ids = ids;
        state->room = room;
    }
    const Cache cache = state->cache;
    uint32_t *ids = state->ids + state->count;
    for (int i = 0, pending = state->pending; i < pending; i++) {
        int64_t added = look_up(state, &cache, state->ahead + i, ids);
        if (added < 0) return -1;
        ids += added;
    }
    state->count = ids - state->ids;
    state->pending = 0;
    return 0;
}

/* Adds the ids of a word, perhaps later. Returns 0, or -1 if there is not enough memory. */
static int add_word(State *state, const uint8_t *word, int64_t size) {
    Pending *pending = state->ahead + state->pending;
    pend(pending, word, size);
    fetch_slot(&state->cache, pending);
    return ++state->pending < AHEAD ? 0 : flush(state);
}

static int add_marked_words(State *state, const uint8_t *text, int64_t at, int64_t end) {
    const Model *model = state->model;
    int prefix = model->has_prefix && at < end && !mark_size(text, at, end);
    while (at < end) {
        int long_marks = 0;
        const uint8_t *word = text + at;
        int64_t word_end = end_of_word(model, text, at, end, &long_marks), size = word_end - at;
        at = word_end;
        if (!prefix && !long_marks) {
            if (add_word(state, word, size)) return -1;
            continue;
        }
        if (flush(state) || !(word = with_spaces(state, word, &size, prefix)) || add_word(state, word, size) || flush(state))
            return -1;
        prefix = 0;
    }
    return 0;
}

/* The end of a match that is a word of ASCII letters, with a character before them that belongs to it, as most are; -1 if it is not
 * such a word, or if that is not clear without the character after it. */
static inline int64_t end_of_ascii_word(const Level *level, const uint8_t *text, int64_t at, int64_t end) {
    uint8_t beginning = level->beginnings[text[at]];
    if (!beginning) return -1;
    int64_t start = at + (beginning == BEFORE_LETTERS), word_end = end_of_letters(text + start, text + end) - text;
    if (word_end <= start || word_end >= end || text[word_end] >= 0x80) return -1;
    return word_end;
}

/* Splits a piece of text with the splitter's levels from `number` on. Returns 0, or -1 if there is not enough
 * memory. */
static int add_split_words(State *state, int32_t number, const uint8_t *text, int64_t at, int64_t end) {
    const Splitter *splitter = state->model->splitter;
    if (number == splitter->level_count) return at < end ? add_word(state, text + at, end - at) : 0;
    const Level *level = splitter->levels + number;
    Matcher matcher = {splitter, level->by_bytes ? splitter->bytes : splitter->ascii, text, end, level->by_bytes, state->missing};
    for (int64_t gap = at; at < end || gap < end;) {
        int64_t match_end = at < end ? end_of_ascii_word(level, text, at, end) : end;
        if (match_end < 0) match_end = tokenmill_match(&matcher, level, at);
        if (match_end < 0) {
            at += level->by_bytes ? 1 : char_size(text[at]);
            /* Nor do ASCII characters match with which no alternative begins. */
            while (!level->by_bytes && at < end && text[at] < 0x80 && !level->candidates[text[at]]) at++;
            continue;
        }
        int error = level->keeps_gaps && gap < at ? add_split_words(state, number + 1, text, gap, at) : 0;
        if (!error && level->keeps_matches && at < match_end)
            error = number + 1 == splitter->level_count ? add_word(state, text + at, match_end - at)
                                                        : add_split_words(state, number + 1, text, at, match_end);
        if (error) return error;
        at = gap = match_end;
    }
    return 0;
}

/* Does what `add_split_words` does, for a splitter of single characters. */
static int add_words_between(State *state, const uint8_t *text, int64_t at, int64_t end) {
    const Splitter *splitter = state->model->splitter;
    Matcher matcher = {splitter, splitter->ascii, text, end, 0, state->missing};
    int64_t word = at;
    while (at < end) {
        if (splitter->letters_stay) {
            at = end_of_letters(text + at, text + end) - text;
            if (at >= end) break;
        }
        int is_ascii = text[at] < 0x80;
        Role role = is_ascii ? splitter->roles[text[at]] : tokenmill_role(splitter, tokenmill_classes_of_long(&matcher, at));
        int64_t next = at + (is_ascii ? 1 : char_size(text[at]));
        if (role != STAYS) {
            if (word < at && add_word(state, text + word, at - word)) return -1;
            if (role == IS_A_WORD && add_word(state, text + at, next - at)) return -1;
            word = next;
        }
        at = next;
    }
    return word < end ? add_word(state, text + word, end - word) : 0;
}

static int add_words(State *state, const uint8_t *text, int64_t at, int64_t end) {
    const Splitter *splitter = state->model->splitter;
    if (!splitter) return add_marked_words(state, text, at, end);
    return splitter->are_single ? add_words_between(state, text, at, end) : add_split_words(state, 0, text, at, end);
}

/* Encodes the texts from `first` on, which begin and end in `data`, after which READ_BEYOND more bytes can be read. `lengths` gets
 * the number of ids of each. Returns how many texts have been encoded, the first ones included: all, unless the next one has
 * characters whose classes are not known. The blocks of these are set in `missing`, and its entry BLOCKS. Returns -1 if there is
 * not enough memory. */
int64_t tokenmill_words_encode(void *states, const uint8_t *data, const int64_t *starts, const int64_t *ends, int64_t first,
                               int64_t texts, int64_t *lengths, uint8_t *missing) {
    State *state = states;
    state->missing = missing;
    const Cache *cache = state->model->cache; /* other threads change its counts, which are not copied */
    state->cache = (Cache){.slots = cache->slots, .slot_mask = cache->slot_mask, .arena = cache->arena};
    if (!first) state->count = 0;
    state->pending = 0;
    for (int64_t i = first; i < texts; i++) {
        int64_t before = state->count;
        if (add_words(state, data, starts[i], ends[i]) || flush(state)) return -1;
        lengths[i] = state->count - before;
        if (missing[BLOCKS]) {
            state->count = before;
            return i;
        }
    }
    return texts;
}

/* Copies the ids of the last texts, all of them. */
void tokenmill_words_copy_ids(const void *states, uint32_t *ids, int64_t count) {
    if (count) memcpy(ids, ((const State *)states)->ids, (size_t)count * sizeof(uint32_t));
}

/* ---- Models and states ---- */

void tokenmill_words_free_model(void *models) {
    Model *model = models;
    if (!model) return;
    tokenmill_free_cache(model->cache);
    free(model->nodes);
    free(model->merges);
    free(model->likely);
    free(model->symbols);
    free(model->last_symbols);
    free(model->before);
    if (model->splitter) {
        for (int i = 0; i < BLOCKS; i++) free(model->splitter->blocks[i]);
        free(model->splitter->alternatives);
        free(model->splitter->instructions);
        free(model->splitter);
    }
    free(model);
}

/* Makes a model that knows no pieces yet. NULL if there is not enough memory, here and below. */
void *tokenmill_words_model(int32_t kind, int32_t cut, int32_t has_prefix, int32_t fuses_unknown, int64_t unknown_id,
                            double unknown_score, int64_t most_chars, const int64_t *byte_ids) {
    Model *model = calloc(1, sizeof(Model));
    if (!model) return NULL;
    if (!(model->cache = tokenmill_new_cache())) {
        free(model);
        return NULL;
    }
    model->kind = kind;
    model->cut = cut;
    model->has_prefix = has_prefix;
    model->fuses_unknown = fuses_unknown;
    model->unknown_id = unknown_id;
    model->unknown_score = unknown_score;
    model->most_chars = most_chars;
    memcpy(model->byte_ids, byte_ids, sizeof(model->byte_ids));
    return model;
}

/* Adds distinct pieces in the order of their bytes. Returns whether there is enough memory, here and below. */
int32_t tokenmill_words_add_pieces(void *models, const uint8_t *pieces, const int64_t *ends, const uint32_t *ids,
                                   const double *scores, int64_t count) {
    Model *model = models;
    return (model->nodes = tokenmill_build_trie(pieces, ends, ids, scores, count)) != NULL;
}

static int32_t *make_symbols(const Model *model, const uint32_t *characters, const uint32_t *ids, int64_t count) {
    int32_t *symbols = calloc(model->kind == BYTE_BPE ? 256 : 0x110000, sizeof(int32_t));
    for (int64_t i = 0; symbols && i < count; i++) symbols[characters[i]] = (int32_t)ids[i] + 1;
    return symbols;
}

/* Adds other ids of characters, or bytes, at the end of a word. */
int32_t tokenmill_words_add_last_symbols(void *models, const uint32_t *characters, const uint32_t *ids, int64_t count) {
    Model *model = models;
    return (model->last_symbols = make_symbols(model, characters, ids, count)) != NULL;
}

/* Adds the ids of single characters, or bytes, and merges (left, right, product) in the order of their ranks; of equal pairs the
 * last one counts. */
int32_t tokenmill_words_add_merges(void *models, const uint32_t *characters, const uint32_t *ids, int64_t count,
                                   const uint32_t *merges, int64_t merge_count, const uint32_t *before,
                                   int64_t before_count) {
    Model *model = models;
    model->symbols = make_symbols(model, characters, ids, count);
    model->before = malloc((size_t)(before_count + 1) * sizeof(uint32_t));
    if (!model->symbols || !model->before) return 0;
    memcpy(model->before, before, (size_t)before_count * sizeof(uint32_t));
    model->before_count = before_count;
    return tokenmill_set_merges(model, merges, merge_count);
}

/* Adds a splitter. `levels` has five numbers for each, in the order of `Level`, and `bytes` the classes of the bytes. */
int32_t tokenmill_words_add_splitter(void *models, const int32_t *levels, int32_t level_count, const Alternative *alternatives,
                                     int64_t alternative_count, const Instruction *instructions, int64_t instruction_count,
                                     const uint32_t *bytes) {
    Splitter *splitter = ((Model *)models)->splitter = calloc(1, sizeof(Splitter));
    if (!splitter || level_count > MOST_LEVELS) return 0;
    splitter->alternatives = malloc((size_t)(alternative_count + 1) * sizeof(Alternative));
    splitter->instructions = malloc((size_t)(instruction_count + 1) * sizeof(Instruction));
    if (!splitter->alternatives || !splitter->instructions) return 0;
    splitter->level_count = level_count;
    for (int32_t i = 0; i < level_count; i++, levels += 5)
        splitter->levels[i] = (Level){levels[0], levels[1], levels[2], levels[3], levels[4], {0}, {0}};
    memcpy(splitter->alternatives, alternatives, (size_t)alternative_count * sizeof(Alternative));
    memcpy(splitter->instructions, instructions, (size_t)instruction_count * sizeof(Instruction));
    memcpy(splitter->bytes, bytes, sizeof(splitter->bytes));
    splitter->are_single = tokenmill_are_single(splitter);
    return 1;
}

/* Sets the classes of the 256 characters of a block, once; of the first block before any text is encoded. */
int32_t tokenmill_words_set_block(void *models, int32_t block, const uint32_t *classes) {
    Splitter *splitter = ((Model *)models)->splitter;
    uint32_t *copy = malloc(256 * sizeof(uint32_t));
    if (!copy) return 0;
    memcpy(copy, classes, 256 * sizeof(uint32_t));
    __atomic_store_n(splitter->blocks + block, copy, __ATOMIC_RELEASE); /* other threads read it */
    if (block) return 1;
    memcpy(splitter->ascii, classes, 128 * sizeof(uint32_t));
    splitter->letters = UINT32_MAX;
    for (int32_t code = 0; code < 128; code++)
        splitter->letters &= (uint8_t)((code | 0x20) - 'a') < 26 ? classes[code] : ~classes[code];
    splitter->letters_stay = splitter->are_single;
    for (int32_t code = 0; splitter->are_single && code < 128; code++) {
        splitter->roles[code] = (uint8_t)tokenmill_role(splitter, classes[code]);
        if ((uint8_t)((code | 0x20) - 'a') < 26 && splitter->roles[code] != STAYS) splitter->letters_stay = 0;
    }
    for (int32_t i = 0; i < splitter->level_count; i++)
        for (int32_t code = 0; code < 128; code++)
            splitter->levels[i].candidates[code] = tokenmill_candidates(splitter, splitter->levels + i, classes[code]);
    for (int32_t i = 0; i < splitter->level_count; i++)
        for (int code = 0; code < 128; code++)
            splitter->levels[i].beginnings[code] = tokenmill_beginning(splitter, splitter->levels + i, (uint8_t)code);
    return 1;
}

void tokenmill_words_free_state(void *states) {
    State *state = states;
    if (!state) return;
    free(state->ids);
    free(state->word.memory);
    free(state->scratch.memory);
    free(state);
}

/* Makes a state for a thread. Returns NULL if there is not enough memory. */
void *tokenmill_words_state(const void *model) {
    State *state = calloc(1, sizeof(State));
    if (state) state->model = model;
    return state;
}

/* Whether the cache of a model has room for the words of `bytes` of text. */
int32_t tokenmill_words_has_room(const void *model, int64_t bytes) {
    return tokenmill_has_room(((const Model *)model)->cache, bytes);
}

/* Makes room in the cache of a model that no thread uses. */
void tokenmill_words_make_room(const void *model, int64_t bytes) { tokenmill_make_room(((const Model *)model)->cache, bytes); }
