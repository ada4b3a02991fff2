/* options_print.h - the table of commands as usage, completion and manual page. */
#ifndef STATOR_OPTIONS_PRINT_H
#define STATOR_OPTIONS_PRINT_H
#include "frontend/config/options.h"

/* A line for each command. */
void options_list(FILE *out);
void options_usage(FILE *out, CommandId command);
/* A function for bash, or for zsh, which takes bash's. */
void options_completion(FILE *out, bool zsh);
/* stator.1, with the keys of the configuration. */
void options_man(FILE *out, const char *version);

#endif
