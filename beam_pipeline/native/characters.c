/* Mapping each character of texts to some characters, see tokenization/character_map.py. */
#include "words.h"

enum { LENGTH_BITS = 8, UNKNOWN = 0, IN_CONTEXT = 255 }; /* of an entry; otherwise the number of bytes plus 1 */
enum { REMOVED = 255 };                                  /* of an ASCII character */

/* Maps the characters of texts of `data`, which begin and end there. `ascii` has what each ASCII character becomes, or REMOVED.
 * For others, an entry has the number of bytes, and above them where they are in `pool`. Texts are written to `out` one after the
 * other, which has room for as many bytes as they can become. One with a character that depends on others is left out, with the end
 * -1. Characters that are not known, or are not in this pool, are written to `unknown`. Returns their number, up to `most`; unless it
 * is 0, the result is incomplete. */
int64_t tokenmill_map_characters(const uint8_t *data, const int64_t *starts, const int64_t *ends, int64_t texts, const uint8_t *ascii,
                                 const uint64_t *entries, const uint8_t *pool, int64_t pool_size, uint8_t *out, int64_t *out_starts,
                                 int64_t *out_ends, uint32_t *unknown, int64_t most) {
    uint8_t *next = out;
    int64_t unknown_count = 0;
    for (int64_t i = 0; i < texts; i++) {
        const uint8_t *at = data + starts[i], *end = data + ends[i];
        int is_whole = 1;
        out_starts[i] = next - out;
        while (at < end) {
            if (*at < 0x80) {
                uint8_t becomes = ascii[*at++];
                *next = becomes;
                next += becomes != REMOVED;
                continue;
            }
            uint32_t code = decode(at);
            at += char_size(*at);
            uint64_t entry = __atomic_load_n(entries + code, __ATOMIC_RELAXED); /* other threads add some */
            int64_t size = (int64_t)(entry & ((1 << LENGTH_BITS) - 1)), start = (int64_t)(entry >> LENGTH_BITS);
            if (size == IN_CONTEXT) {
                is_whole = 0;
            } else if (size == UNKNOWN || start + size - 1 > pool_size) {
                unknown[unknown_count++] = code;
                if (unknown_count == most) return unknown_count;
            } else {
                for (int64_t k = 0; k < size - 1; k++) *next++ = pool[start + k];
            }
        }
        out_ends[i] = is_whole ? next - out : -1;
        if (!is_whole) next = out + out_starts[i];
    }
    return unknown_count;
}
