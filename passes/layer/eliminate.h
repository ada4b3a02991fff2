/* eliminate.h - the states with the least sum of tables. Exact, by eliminating one variable after
 * the other (bucket elimination, Dechter 1999): the tables that a variable is in are added up and
 * replaced by one over their other variables, which has the least over its states. Before, states
 * are dropped that the least sum can do without (alive.h). */
#ifndef STATOR_ELIMINATE_H
#define STATOR_ELIMINATE_H
#include "passes/layer/factors.h"

/* Orders of elimination, by which variables are in a table together and how many states each has
 * left: finding one can take longer than to go through it, and problems of one kind share them. */
typedef struct FactorOrders FactorOrders;
FactorOrders *factors_orders(Arena *mem);
/* Sets state[] to one with the least sum, always the same among equals, and returns the sum;
 * INFINITY, and state[] as it was: none may be. Fails with EXIT_CONFIG where a table would have
 * more than `cap` entries. known: takes orders from there and adds those that it finds; NULL: finds
 * its own. */
double factors_least(const Factors *f, int64_t cap, int *state, FactorOrders *known);

#endif
