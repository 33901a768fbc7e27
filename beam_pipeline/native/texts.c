/* Texts from the bytes of a file: which of them are UTF-8, and the texts of JSON lines. */
#include "words.h"

enum { MOST_DEPTH = 64 };

static int is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* Whether bytes are UTF-8: table 3-7 of the Unicode standard. */
int32_t tokenmill_is_utf8(const uint8_t *at, int64_t size) {
    const uint8_t *end = at + size;
    const uint64_t highs = 0x8080808080808080u;
    while (at < end) {
        uint8_t first = *at;
        if (first < 0x80) {
            while (end - at >= 32 && !((load(at) | load(at + 8) | load(at + 16) | load(at + 24)) & highs)) at += 32;
            while (end - at >= 8 && !(load(at) & highs)) at += 8;
            while (at < end && *at < 0x80) at++;
        } else if (first < 0xE0) {
            if (first < 0xC2 || end - at < 2 || !is_continuation(at[1])) return 0;
            at += 2;
        } else if (first < 0xF0) {
            if (end - at < 3 || !is_continuation(at[1]) || !is_continuation(at[2])) return 0;
            if ((first == 0xE0 && at[1] < 0xA0) || (first == 0xED && at[1] > 0x9F)) return 0;
            at += 3;
        } else {
            if (first > 0xF4 || end - at < 4 || !is_continuation(at[1]) || !is_continuation(at[2]) || !is_continuation(at[3]))
                return 0;
            if ((first == 0xF0 && at[1] < 0x90) || (first == 0xF4 && at[1] > 0x8F)) return 0;
            at += 4;
        }
    }
    return 1;
}

/* ---- JSON (RFC 8259) ---- */

/* A line that is read. Each function below returns where it goes on, or NULL if the line is not what it expects. */
typedef struct {
    const uint8_t *end, *key;
    int64_t key_size;
    uint8_t *text; /* where the value of the key is written */
    int64_t text_size; /* -1 if there is none */
} Line;

static const uint8_t *skip_space(const Line *line, const uint8_t *at) {
    while (at < line->end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')) at++;
    return at;
}

/* Whether any of eight bytes ends a stretch of plain characters of a string: a quote, a backslash, a control character. */
static uint64_t ends_of_plain(uint64_t bytes) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t quotes = bytes ^ ones * '"', slashes = bytes ^ ones * '\\';
    return (((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes) | ((bytes - ones * 0x20) & ~bytes)) & highs;
}

/* The end of a stretch of plain characters, which are copied to `to` unless it is NULL. Up to 8 bytes more are copied. */
static const uint8_t *skip_plain(const Line *line, const uint8_t *at, uint8_t *to) {
    for (; at < line->end; at += 8) {
        uint64_t bytes = load(at), ends = ends_of_plain(bytes);
        if (to) {
            memcpy(to, &bytes, 8);
            to += 8;
        }
        if (!ends) continue;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        while (*at >= 0x20 && *at != '"' && *at != '\\') at++;
#else
        at += __builtin_ctzll(ends) >> 3; /* the lowest one is exact */
#endif
        break;
    }
    return at < line->end ? at : line->end;
}

static int32_t hex_of(const Line *line, const uint8_t *at) {
    int32_t code = 0;
    if (line->end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        uint8_t lower = at[i] | 0x20, digit = at[i] - '0', letter = lower - 'a';
        if (digit > 9 && letter > 5) return -1;
        code = code << 4 | (digit <= 9 ? digit : letter + 10);
    }
    return code;
}

/* Reads what follows a backslash, and writes the character to `to`, which moves on. Half a surrogate pair is an error. */
static const uint8_t *read_escape(const Line *line, const uint8_t *at, uint8_t **to) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    uint8_t *out = *to;
    if (at == line->end) return NULL;
    if (*at != 'u') {
        const char *found = *at ? strchr(letters, *at) : NULL;
        if (!found) return NULL;
        *out = (uint8_t)meanings[found - letters];
        *to = out + 1;
        return at + 1;
    }
    int32_t code = hex_of(line, at + 1);
    at += 5;
    if (code < 0 || (code >= 0xDC00 && code < 0xE000)) return NULL;
    if (code >= 0xD800 && code < 0xDC00) {
        if (line->end - at < 6 || at[0] != '\\' || at[1] != 'u') return NULL;
        int32_t low = hex_of(line, at + 2);
        if (low < 0xDC00 || low >= 0xE000) return NULL;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
    }
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        if (code < 0x10000) {
            *out++ = (uint8_t)(0xE0 | code >> 12);
        } else {
            *out++ = (uint8_t)(0xF0 | code >> 18);
            *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        }
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    *to = out;
    return at;
}

/* Reads a string after its quote. It is written to `to`, if that is not NULL, and its size to `size`. */
static const uint8_t *read_string(const Line *line, const uint8_t *at, uint8_t *to, int64_t *size) {
    uint8_t unused[4], *next = to;
    for (;;) {
        const uint8_t *plain_end = skip_plain(line, at, next);
        if (next) next += plain_end - at;
        at = plain_end;
        if (at == line->end || *at < 0x20) return NULL;
        if (*at == '"') break;
        uint8_t *character = next ? next : unused;
        if (!(at = read_escape(line, at + 1, &character))) return NULL;
        if (next) next = character;
    }
    if (size) *size = next - to;
    return at + 1;
}

static const uint8_t *skip_digits(const Line *line, const uint8_t *at) {
    const uint8_t *start = at;
    while (at < line->end && *at >= '0' && *at <= '9') at++;
    return at == start ? NULL : at;
}

static const uint8_t *skip_number(const Line *line, const uint8_t *at) {
    at += *at == '-';
    if (at < line->end && *at == '0') at++;
    else if (!(at = skip_digits(line, at))) return NULL;
    if (at < line->end && *at == '.' && !(at = skip_digits(line, at + 1))) return NULL;
    if (at < line->end && (*at | 0x20) == 'e') {
        at++;
        if (at < line->end && (*at == '+' || *at == '-')) at++;
        at = skip_digits(line, at);
    }
    return at;
}

static const uint8_t *skip_word(const Line *line, const uint8_t *at, const char *word) {
    size_t size = strlen(word);
    return line->end - at >= (int64_t)size && !memcmp(at, word, size) ? at + size : NULL;
}

static const uint8_t *skip_value(const Line *line, const uint8_t *at, int depth);

/* Skips a list or an object after its bracket. */
static const uint8_t *skip_items(const Line *line, const uint8_t *at, uint8_t close, int depth) {
    at = skip_space(line, at);
    if (at < line->end && *at == close) return at + 1;
    for (;;) {
        if (close == '}') {
            at = skip_space(line, at);
            if (at == line->end || *at != '"' || !(at = read_string(line, at + 1, NULL, NULL))) return NULL;
            at = skip_space(line, at);
            if (at == line->end || *at++ != ':') return NULL;
        }
        if (!(at = skip_value(line, at, depth))) return NULL;
        at = skip_space(line, at);
        if (at == line->end) return NULL;
        if (*at == close) return at + 1;
        if (*at++ != ',') return NULL;
    }
}

static const uint8_t *skip_value(const Line *line, const uint8_t *at, int depth) {
    at = skip_space(line, at);
    if (at == line->end || depth == MOST_DEPTH) return NULL;
    switch (*at) {
    case '"': return read_string(line, at + 1, NULL, NULL);
    case '{': return skip_items(line, at + 1, '}', depth + 1);
    case '[': return skip_items(line, at + 1, ']', depth + 1);
    case 't': return skip_word(line, at, "true");
    case 'f': return skip_word(line, at, "false");
    case 'n': return skip_word(line, at, "null");
    default: return skip_number(line, at);
    }
}

/* Reads an object, and the value of its key. */
static const uint8_t *read_record(Line *line, const uint8_t *at) {
    at = skip_space(line, at);
    if (at == line->end || *at++ != '{') return NULL;
    for (;;) {
        at = skip_space(line, at);
        if (at == line->end || *at++ != '"') return NULL;
        const uint8_t *name = at;
        at = skip_plain(line, at, NULL);
        if (at == line->end || *at != '"') return NULL; /* also a name with a backslash */
        int is_key = at - name == line->key_size && !memcmp(name, line->key, (size_t)line->key_size);
        at = skip_space(line, at + 1);
        if (at == line->end || *at++ != ':') return NULL;
        at = skip_space(line, at);
        if (at == line->end || (is_key && *at != '"')) return NULL;
        /* Of equal keys, the last one counts. */
        at = is_key ? read_string(line, at + 1, line->text, &line->text_size) : skip_value(line, at, 0);
        if (!at) return NULL;
        at = skip_space(line, at);
        if (at == line->end) return NULL;
        if (*at == '}') return skip_space(line, at + 1);
        if (*at++ != ',') return NULL;
    }
}

/* Writes the texts of lines, each of which is an object with a string under `key`, one after the other to `out`, which is at
 * least as large as `data` with the 16 bytes that can be read after its last line. `text_ends` gets the end of each in it; -1 for
 * a line that is anything else, or that is left to another parser: names with escapes, deep nesting. */
void tokenmill_json_texts(const uint8_t *data, const int64_t *starts, const int64_t *ends, int64_t lines, const uint8_t *key,
                          int64_t key_size, uint8_t *out, int64_t *text_starts, int64_t *text_ends) {
    int64_t written = 0;
    for (int64_t i = 0; i < lines; i++) {
        Line line = {data + ends[i], key, key_size, out + written, -1};
        text_starts[i] = written;
        text_ends[i] = -1;
        if (!tokenmill_is_utf8(data + starts[i], ends[i] - starts[i])) continue;
        if (read_record(&line, data + starts[i]) != line.end || line.text_size < 0) continue;
        text_ends[i] = written += line.text_size;
    }
}

/* Returns the number of line feeds in `data`, and writes where they are unless `places` is NULL. */
int64_t tokenmill_line_feeds(const uint8_t *data, int64_t size, int64_t *places) {
    int64_t count = 0;
    for (const uint8_t *place = data, *end = data + size; (place = memchr(place, '\n', (size_t)(end - place))); place++) {
        if (places) places[count] = place - data;
        count++;
    }
    return count;
}
