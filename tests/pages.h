/* pages.h - pages of docs that are made from tables of the product; tests hold them. */
#ifndef STATOR_TESTS_PAGES_H
#define STATOR_TESTS_PAGES_H
#include <stdio.h>

void page_of_keys(FILE *out);     /* docs/keys.md */
void page_of_megatron(FILE *out); /* docs/megatron.md */

#endif
