/* The inner loops of encoding rows and of finding records: plain C without Python's API, which `library.py` calls by ctypes.
 *
 * A record is a `tf.Example` in TFRecord framing, as in dataset/encoders.py, which has the sources of both formats and an
 * encoder of the same bytes in Python.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define HAS_CRC_INSTRUCTION 1
#endif

/* ---- CRC-32C (Castagnoli): RFC 3720, section 12.1; the polynomial is 0x1EDC6F41, here with its bits reversed ---- */

static uint32_t crc_table[8][256]; /* crc_table[k][b]: the CRC of byte b and then k zero bytes */

/* Raise it with each change to the arguments of a function, also in `library.py`: an installation in place can have compiled
 * functions of an earlier version. */
enum { INTERFACE = 11 };

/* Prepares the other functions, and returns INTERFACE. */
int tokenmill_initialize(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) {
            uint32_t before = crc_table[k - 1][byte];
            crc_table[k][byte] = before >> 8 ^ crc_table[0][before & 0xFF];
        }
    return INTERFACE;
}

static uint32_t crc_by_table(const uint8_t *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^ crc_table[5][low >> 16 & 0xFF] ^
              crc_table[4][low >> 24] ^ crc_table[3][data[4]] ^ crc_table[2][data[5]] ^ crc_table[1][data[6]] ^
              crc_table[0][data[7]];
    }
    for (; size; data++, size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data) & 0xFF];
    return ~crc;
}

#ifdef HAS_CRC_INSTRUCTION
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(const uint8_t *data, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size; data++, size--) crc = _mm_crc32_u8((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}
#endif

/* Returns the CRC-32C; `portable` computes it without the processor's instruction. */
uint32_t tokenmill_crc32c(const uint8_t *data, size_t size, int portable) {
#ifdef HAS_CRC_INSTRUCTION
    if (!portable && __builtin_cpu_supports("sse4.2")) return crc_by_instruction(data, size);
#else
    (void)portable;
#endif
    return crc_by_table(data, size);
}

static uint32_t masked_crc(const uint8_t *data, size_t size) {
    uint32_t crc = tokenmill_crc32c(data, size, 0);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ---- Records ---- */

typedef struct {
    const char *name;
    const void *values; /* [rows, max_length], or NULL for the attention mask, which the rows' lengths determine */
    int32_t itemsize;   /* bytes per value: 2 or 4 */
} Feature;

enum { MOST_FEATURES = 8 };
static const uint64_t BEYOND = (uint64_t)1 << 62; /* more than any file has */

static uint8_t *put_little_endian(uint8_t *out, uint64_t value, int bytes) {
    for (int byte = 0; byte < bytes; byte++) *out++ = (uint8_t)(value >> 8 * byte);
    return out;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
    for (; value > 0x7F; value >>= 7) *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

static size_t varint_size(uint64_t value) {
    size_t size = 1;
    for (; value > 0x7F; value >>= 7) size++;
    return size;
}

/* The size of a field that contains `size` bytes: its tag, their number, and they. */
static size_t field_size(size_t size) { return 1 + varint_size(size) + size; }

static uint8_t *put_head(uint8_t *out, uint8_t tag, size_t size) {
    *out++ = tag;
    return put_varint(out, size);
}

/* The bytes that the varints of a row's values take, if none is 2^21 or more. Adds the values to the bitwise or `largest`.
 *
 * `put_values` writes each varint as four bytes, of which the next one overwrites what it does not need. */
#define DEFINE_VALUES(TYPE, BITS)                                                                          \
    static size_t values_size_##BITS(const TYPE *values, int64_t count, uint32_t *largest) {              \
        uint32_t more = 0, all = 0;                                                                        \
        for (int64_t i = 0; i < count; i++) {                                                              \
            more += (values[i] > 0x7F) + ((uint32_t)values[i] > 0x3FFF);                                   \
            all |= values[i];                                                                              \
        }                                                                                                  \
        *largest |= all;                                                                                   \
        return (size_t)count + more;                                                                       \
    }                                                                                                      \
    static uint8_t *put_values_##BITS(uint8_t *out, const TYPE *values, int64_t count) {                   \
        for (int64_t i = 0; i < count; i++) {                                                              \
            uint32_t value = values[i], two = value > 0x7F, three = value > 0x3FFF;                        \
            uint32_t bytes = (value & 0x7F) | (value & 0x3F80) << 1 | (value & 0x1FC000) << 2;             \
            put_little_endian(out, bytes | two << 7 | three << 15, 4);                                     \
            out += 1 + two + three;                                                                        \
        }                                                                                                  \
        return out;                                                                                        \
    }

DEFINE_VALUES(uint16_t, 16)
DEFINE_VALUES(uint32_t, 32)

/* The same for any values, more slowly: few vocabularies have ids of four bytes and more. */
static size_t large_values_size(const uint32_t *values, int64_t count) {
    size_t size = 0;
    for (int64_t i = 0; i < count; i++) size += varint_size(values[i]);
    return size;
}

static uint8_t *put_large_values(uint8_t *out, const uint32_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) out = put_varint(out, values[i]);
    return out;
}

/* Encodes rows as framed records, one after the other.
 *
 * features: at most MOST_FEATURES, sorted by name.
 * value_bytes: the largest number of bytes of a value's varint, 3 to 5.
 * out: must have room for the records if each value needed so many bytes, and three bytes more.
 *
 * Returns the number of bytes written, or -1 - r if row r has a larger value, or a length above max_length.
 */
int64_t tokenmill_encode(int64_t rows, int64_t max_length, const uint32_t *lengths, int32_t count,
                         const Feature *features, int32_t value_bytes, uint8_t *out) {
    uint8_t *begin = out;
    for (int64_t row = 0; row < rows; row++) {
        size_t sizes[MOST_FEATURES], total = 0;
        uint32_t largest[MOST_FEATURES] = {0};
        if (lengths[row] > max_length) return -1 - row;
        for (int32_t f = 0; f < count; f++) {
            const Feature *feature = &features[f];
            int64_t first = row * max_length;
            if (!feature->values) sizes[f] = (size_t)max_length;
            else if (feature->itemsize == 2)
                sizes[f] = values_size_16((const uint16_t *)feature->values + first, max_length, &largest[f]);
            else {
                const uint32_t *values = (const uint32_t *)feature->values + first;
                sizes[f] = values_size_32(values, max_length, &largest[f]);
                if (largest[f] >> 21) sizes[f] = large_values_size(values, max_length);
            }
            if ((uint64_t)largest[f] >> 7 * value_bytes) return -1 - row;
            /* Features.feature's entry: the key, and a Feature with an Int64List with packed values. */
            total += field_size(field_size(strlen(feature->name)) + field_size(field_size(field_size(sizes[f]))));
        }
        uint8_t *frame = out;
        out = put_little_endian(out, field_size(total), 8);
        out = put_little_endian(out, masked_crc(frame, 8), 4);
        uint8_t *data = out;
        out = put_head(out, 0x0A, total); /* Example.features */
        for (int32_t f = 0; f < count; f++) {
            const Feature *feature = &features[f];
            size_t name = strlen(feature->name), packed = field_size(sizes[f]);
            out = put_head(out, 0x0A, field_size(name) + field_size(field_size(packed)));
            out = put_head(out, 0x0A, name); /* the entry's key */
            memcpy(out, feature->name, name);
            out += name;
            out = put_head(out, 0x12, field_size(packed)); /* the entry's value, a Feature */
            out = put_head(out, 0x1A, packed);             /* Feature.int64_list */
            out = put_head(out, 0x0A, sizes[f]);           /* Int64List.value */
            if (!feature->values) {
                memset(out, 1, lengths[row]);
                memset(out + lengths[row], 0, (size_t)max_length - lengths[row]);
                out += max_length;
            } else if (feature->itemsize == 2)
                out = put_values_16(out, (const uint16_t *)feature->values + row * max_length, max_length);
            else if (largest[f] >> 21)
                out = put_large_values(out, (const uint32_t *)feature->values + row * max_length, max_length);
            else out = put_values_32(out, (const uint32_t *)feature->values + row * max_length, max_length);
        }
        out = put_little_endian(out, masked_crc(data, (size_t)(out - data)), 4);
    }
    return out - begin;
}

/* Follows the lengths of framed records, the first of which begins at `place`, as far as the data contain them.
 *
 * most: the room in `ends`; size / 16 + 1 is enough.
 *
 * Returns the number of ends found, which are places as `place` is. The last one can be beyond the data.
 */
int64_t tokenmill_record_ends(const uint8_t *data, int64_t size, int64_t place, int64_t most, int64_t *ends) {
    int64_t count = 0;
    for (; count < most && place <= size - 8; count++) {
        uint64_t length = 0;
        for (int byte = 0; byte < 8; byte++) length |= (uint64_t)data[place + byte] << 8 * byte;
        if (length > BEYOND) length = BEYOND;
        ends[count] = place += (int64_t)length + 16;
    }
    return count;
}
