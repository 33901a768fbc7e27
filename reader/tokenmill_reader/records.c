/* Decodes rows from serialized `tf.train.Example`s: plain C without Python's API, which compiled.py calls by ctypes.
 *
 * It takes only records of the usual form: packed int64 lists of varints of at most three bytes. For
 * any other record it gives up, and the code in Python decodes the batch, or says what is wrong with it. A file may change
 * while it is mapped, so no byte is trusted: each is read once, and no length leads out of its record.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Raise it with each change to the arguments, also in compiled.py: an installation in place can have another version. */
enum { INTERFACE = 1 };
enum { BLOCK = 64, LONGEST_LENGTH = 4, LONGEST_VALUE = 3 };
enum { TAG_1 = 0x0A, TAG_VALUE = 0x12, TAG_INT64_LIST = 0x1A }; /* length-delimited fields 1, 2 and 3 */

typedef struct {
    const char *name;
    int64_t name_size;
    int32_t *values; /* [rows, max_length] */
} Feature;

/* Returns INTERFACE; 0 if this machine's numbers are not little-endian, as `load` needs them. */
int tokenmill_reader_interface(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first ? INTERFACE : 0;
}

static uint64_t load(const uint8_t *place) {
    uint64_t word;
    memcpy(&word, place, 8);
    return word;
}

/* Bit b is set if byte b of the block ends a varint. */
static uint64_t varint_ends(const uint8_t *block) {
    uint64_t ends = 0;
    for (int word = 0; word < BLOCK / 8; word++) {
        uint64_t high_bits = (~load(block + 8 * word) & 0x8080808080808080u) >> 7;
        ends |= (high_bits * 0x0102040810204080u >> 56) << 8 * word; /* gathers the eight bits */
    }
    return ends;
}

/* Decodes `count` varints, which must fill the bytes from `begin` to `end`. Three bytes before them are in the record.
 * Returns whether they do, and none is longer than LONGEST_VALUE. */
static int decode_values(const uint8_t *begin, const uint8_t *end, int64_t count, int32_t *out) {
    if (end - begin == count) { /* a byte each, as in masks */
        uint8_t all = 0;
        for (int64_t i = 0; i < count; i++) {
            all |= begin[i];
            out[i] = begin[i];
        }
        return all < 0x80;
    }
    int64_t done = 0;
    uint64_t too_long = 0, continued = 0; /* bit b: byte b of the block is not the last of its varint */
    const uint8_t *last = begin - 1; /* the last byte of the varint before */
    for (const uint8_t *place = begin; place < end; place += BLOCK) {
        uint64_t ends, before = continued;
        if (end - place >= BLOCK) continued = ~(ends = varint_ends(place));
        else { /* what is after the values may not be readable; it ends none of them */
            uint8_t padded[BLOCK];
            memset(padded, 0x80, BLOCK);
            memcpy(padded, place, (size_t)(end - place));
            ends = varint_ends(padded);
            continued = ~ends & (((uint64_t)1 << (end - place)) - 1);
        }
        too_long |= continued & (continued << 1 | before >> 63) & (continued << 2 | before >> 62);
        if (count - done < BLOCK && count - done < __builtin_popcountll(ends)) return 0;
        for (; ends; done++) {
            const uint8_t *value_end = place + __builtin_ctzll(ends); /* its last byte */
            uint32_t size = (uint32_t)(value_end - last), bits;
            ends &= ends - 1;
            last = value_end;
            memcpy(&bits, value_end - 3, 4); /* the varint's bytes are the last ones */
            bits >>= (32 - 8 * size) & 31;
            out[done] = (int32_t)((bits & 0x7F) | (bits >> 1 & 0x3F80) | (bits >> 2 & 0x1FC000));
        }
    }
    return done == count && last == end - 1 && !too_long;
}

/* Enters the length-delimited field with this tag at `*place`. Returns its end; NULL if there is none that ends in time. */
static const uint8_t *enter(const uint8_t **place, const uint8_t *end, uint8_t tag) {
    if (*place >= end || *(*place)++ != tag) return NULL;
    size_t length = 0;
    for (int count = 0; count < LONGEST_LENGTH && *place < end; count++) {
        uint8_t byte = *(*place)++;
        length |= (size_t)(byte & 0x7F) << 7 * count;
        if (byte < 0x80) return length <= (size_t)(end - *place) ? *place + length : NULL;
    }
    return NULL;
}

static int decode_record(const uint8_t *place, const uint8_t *end, const Feature *features, int64_t num_features,
                         int exclusive, int64_t max_length, int64_t row) {
    uint64_t missing = ((uint64_t)1 << num_features) - 1;
    if (enter(&place, end, TAG_1) != end) return 0;
    while (place < end) {
        const uint8_t *entry_end = enter(&place, end, TAG_1);
        if (!entry_end) return 0;
        const uint8_t *name_end = enter(&place, entry_end, TAG_1);
        if (!name_end) return 0;
        int64_t feature = 0;
        for (; feature < num_features; feature++)
            if (features[feature].name_size == name_end - place &&
                !memcmp(features[feature].name, place, (size_t)(name_end - place)))
                break;
        place = name_end;
        if (enter(&place, entry_end, TAG_VALUE) != entry_end || enter(&place, entry_end, TAG_INT64_LIST) != entry_end ||
            enter(&place, entry_end, TAG_1) != entry_end)
            return 0;
        if (feature < num_features) {
            if (!(missing >> feature & 1)) return 0; /* a second list with this name */
            missing ^= (uint64_t)1 << feature;
            if (!decode_values(place, entry_end, max_length, features[feature].values + row * max_length)) return 0;
        } else if (exclusive) return 0;
        place = entry_end;
    }
    return !missing;
}

/* Decodes records.
 *
 * data, size: the bytes that contain them.
 * starts, ends: of each record in `data`.
 * rows: the row of each in the features' values, of which there are num_rows.
 * num_features: at most 63.
 * exclusive: whether records must have no other features.
 *
 * Returns whether all were decoded. If not, the values are undefined.
 */
int tokenmill_reader_decode(const uint8_t *data, int64_t size, int64_t num_records, const int64_t *starts,
                            const int64_t *ends, const int64_t *rows, int64_t num_rows, const Feature *features,
                            int64_t num_features, int exclusive, int64_t max_length) {
    for (int64_t record = 0; record < num_records; record++) {
        int64_t start = starts[record], end = ends[record], row = rows[record];
        if (start < 0 || end < start || end > size || row < 0 || row >= num_rows) return 0;
        if (!decode_record(data + start, data + end, features, num_features, exclusive, max_length, row)) return 0;
    }
    return 1;
}
