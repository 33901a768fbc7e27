/* Pre-tokenizers that split text with a regular expression, or at characters of a class.
 *
 * A pattern is a list of alternatives, of which the first one that matches counts, as in Oniguruma, which `tokenizers` uses. It
 * has been compiled to instructions (patterns.py), which a matcher with backtracking follows. What characters a class contains
 * is not known here: `tokenizers` itself is asked, for a block of 256 characters when the first of them occurs.
 */
#include "words.h"

enum { RUN, POSSESSIVE_RUN, NOT_AHEAD, FORK, JUMP, END }; /* Operation in patterns.py */
enum { NO_MATCH = -1, NO_MAXIMUM = INT32_MAX };

uint32_t tokenmill_classes_of_long(Matcher *matcher, int64_t at) {
    uint32_t code = decode(matcher->text + at);
    const uint32_t *block = __atomic_load_n(matcher->splitter->blocks + (code >> 8), __ATOMIC_ACQUIRE);
    if (block) return block[code & 0xFF];
    matcher->missing[code >> 8] = matcher->missing[BLOCKS] = 1; /* the text is encoded again */
    return 0;
}

static inline int is_single(const Matcher *matcher, int64_t at) { return matcher->text[at] < 0x80 || matcher->by_bytes; }

static inline uint32_t classes_at(Matcher *matcher, int64_t at) {
    return is_single(matcher, at) ? matcher->single[matcher->text[at]] : tokenmill_classes_of_long(matcher, at);
}

static inline int width_at(const Matcher *matcher, int64_t at) {
    return is_single(matcher, at) ? 1 : char_size(matcher->text[at]);
}

/* Where the characters of some classes end. */
static inline int64_t end_of_run(Matcher *matcher, uint32_t classes, int64_t at) {
    const uint8_t *place = matcher->text + at, *end = matcher->text + matcher->end;
    const uint32_t *single = matcher->single;
    int are_letters = !matcher->by_bytes && classes & matcher->splitter->letters;
    for (;; place += char_size(*place)) {
        if (are_letters) {
            place = end_of_letters(place, end);
            if (place > end) place = end;
        } else {
            while (place < end && single[*place] & classes) place++;
        }
        at = place - matcher->text;
        if (place == end || is_single(matcher, at) || !(tokenmill_classes_of_long(matcher, at) & classes)) return at;
    }
}

/* Returns the end of the match of the instructions from `number` on, or NO_MATCH. */
static int64_t run(Matcher *matcher, int32_t number, int64_t at) {
    for (;; number++) {
        const Instruction *instruction = matcher->splitter->instructions + number;
        switch (instruction->operation) {
        case END: return at;
        case JUMP: number = instruction->minimum - 1; break;
        case FORK: {
            int64_t end = run(matcher, instruction->minimum, at);
            if (end != NO_MATCH) return end;
            number = instruction->maximum - 1;
            break;
        }
        case NOT_AHEAD:
            if (at < matcher->end && classes_at(matcher, at) & instruction->classes) return NO_MATCH;
            break;
        default: {
            int64_t least = at, count = 0;
            const uint32_t classes = instruction->classes;
            while (count < instruction->minimum) {
                if (at == matcher->end || !(classes_at(matcher, at) & classes)) return NO_MATCH;
                least = at += width_at(matcher, at);
                count++;
            }
            if (instruction->maximum == NO_MAXIMUM) {
                at = end_of_run(matcher, classes, at);
            } else {
                for (; count < instruction->maximum && at < matcher->end && classes_at(matcher, at) & classes; count++)
                    at += width_at(matcher, at);
            }
            if (instruction->operation == POSSESSIVE_RUN) break;
            for (; at > least; at--) { /* the rest of the pattern decides how much it matches */
                if (!matcher->by_bytes && at < matcher->end && (matcher->text[at] & 0xC0) == 0x80) continue;
                int64_t end = run(matcher, number + 1, at);
                if (end != NO_MATCH) return end;
            }
        }
        }
    }
}

int64_t tokenmill_match(Matcher *matcher, const Level *level, int64_t at) {
    const Splitter *splitter = matcher->splitter;
    uint32_t candidates = is_single(matcher, at) && !level->by_bytes
                              ? level->candidates[matcher->text[at]]
                              : tokenmill_candidates(splitter, level, classes_at(matcher, at));
    for (; candidates; candidates &= candidates - 1) {
        const Alternative *alternative = splitter->alternatives + level->first + __builtin_ctz(candidates);
        int64_t match_end = NO_MATCH;
        if (alternative->repeated) {
            int64_t start = at;
            if (classes_at(matcher, start) & alternative->optional) start += width_at(matcher, start);
            if (start < matcher->end && classes_at(matcher, start) & alternative->repeated)
                match_end = end_of_run(matcher, alternative->repeated, start);
        } else {
            match_end = run(matcher, alternative->start, at);
        }
        if (match_end != NO_MATCH) return match_end;
    }
    return NO_MATCH;
}

uint32_t tokenmill_candidates(const Splitter *splitter, const Level *level, uint32_t classes) {
    uint32_t candidates = 0;
    for (int32_t i = 0; i < level->count; i++)
        candidates |= (uint32_t)((splitter->alternatives[level->first + i].classes & classes) != 0) << i;
    return candidates;
}

/* How a word of ASCII letters may begin with an ASCII character: see `Level`. */
uint8_t tokenmill_beginning(const Splitter *splitter, const Level *level, uint8_t character) {
    uint32_t candidates = level->candidates[character], classes = splitter->ascii[character];
    if (!candidates || level->by_bytes) return 0;
    const Alternative *alternative = splitter->alternatives + level->first + __builtin_ctz(candidates);
    if (!(alternative->repeated & splitter->letters)) return 0;
    int is_optional = (classes & alternative->optional) != 0, is_repeated = (classes & alternative->repeated) != 0;
    return is_optional == is_repeated ? 0 : is_optional ? BEFORE_LETTERS : LETTER;
}

int tokenmill_are_single(const Splitter *splitter) {
    for (int32_t i = 0; i < splitter->level_count; i++) {
        const Level *level = splitter->levels + i;
        const Instruction *first = splitter->instructions + splitter->alternatives[level->first].start;
        if (level->by_bytes || level->count != 1 || !level->keeps_gaps) return 0;
        if (first->operation != POSSESSIVE_RUN || first->minimum != 1 || first->maximum != 1 || first[1].operation != END) return 0;
    }
    return 1;
}

Role tokenmill_role(const Splitter *splitter, uint32_t classes) {
    Role role = STAYS;
    for (int32_t i = 0; i < splitter->level_count; i++) {
        if (!(splitter->alternatives[splitter->levels[i].first].classes & classes)) continue;
        if (!splitter->levels[i].keeps_matches) return IS_DROPPED;
        role = IS_A_WORD; /* which a later level may drop */
    }
    return role;
}
