/* small_message.h - of which collectives everybody gets everything, in rounds in which twice as
 * many have it: for those who run them and those who say how long they take. */
#ifndef STATOR_SMALL_MESSAGE_H
#define STATOR_SMALL_MESSAGE_H
#include <stdbool.h>

enum { SMALL_MESSAGE_BYTES = 64 << 10 }; /* of all members together */

/* Of a collective that adds up, or gathers, or both (all_reduce), where each member gives so many
 * bytes. Of two members' one that does not both is a single step either way. */
static inline bool message_is_small(bool reduces, bool gathers, int members,
                                    double bytes) {
    if (!reduces && !gathers) return false;
    if (members == 2 && !(reduces && gathers)) return false;
    return bytes * members <= SMALL_MESSAGE_BYTES;
}

#endif
