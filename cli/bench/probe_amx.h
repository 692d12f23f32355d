/* The AMX probe of probe.c: products of tiles of bfloat16. */
#ifndef ATTNGRAD_CLI_PROBE_AMX_H
#define ATTNGRAD_CLI_PROBE_AMX_H

#include <stdint.h>

/* Of a tile: bfloat16 numbers, and operations of a product of two of them. */
enum { PROBE_TILE = 16 * 32, PROBE_TILE_OPERATIONS = 2 * 16 * 16 * 32, PROBE_TILES = 4 };

/* Does the processor have the unit, and does the system let this process use it? */
int probe_amx_usable(void);

/* `rounds` times the four products of two tiles and two others, each with its own sum. The numbers must be
 * random: on zeros AMX is a fifth faster than on other numbers. The thread's tiles are configured
 * as before when it returns, as other libraries in the process rely on it; their contents are zero. */
void probe_amx_products(const uint16_t *numbers, int rounds);

#endif
