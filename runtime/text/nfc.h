/* nfc.h - Unicode's normalization form C (UAX 15), of the characters of Unicode 9.0, as the
 * library `tokenizers` has it: with marks of later versions texts would get other ids than
 * those that the models were trained on. */
#ifndef STATOR_NFC_H
#define STATOR_NFC_H
#include "base/base.h"

typedef struct Nfc Nfc;

/* Tables; they live as long as `mem`, and any number of threads may use them at once. */
const Nfc *nfc_new(Arena *mem);
/* True when s[n], valid UTF-8, surely is in the form; false when it may not be. */
bool nfc_is(const Nfc *nfc, const char *s, size_t n);
/* Writes the form of s[n], valid UTF-8, to out: at most 3n bytes. Returns how many. Works
 * in room[NFC_ROOM_BYTES]. Fails with EXIT_DATA for a character with more than about
 * NFC_MAX_MARKS marks on it. */
enum { NFC_MAX_MARKS = 1 << 14, NFC_ROOM_BYTES = 16 * NFC_MAX_MARKS };
size_t nfc_put(const Nfc *nfc, const char *s, size_t n, char *out, void *room);

#endif
