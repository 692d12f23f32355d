/* The AMX probe of probe.c: products of tiles of bfloat16. */
#ifndef ATTNGRAD_CLI_PROBE_AMX_H
#define ATTNGRAD_CLI_PROBE_AMX_H

#include <stdint.h>

/* PROBE_TILE: bfloat16 elements per tile. PROBE_TILE_OPERATIONS: operations per product of two tiles. */
enum { PROBE_TILE = 16 * 32, PROBE_TILE_OPERATIONS = 2 * 16 * 16 * 32, PROBE_TILES = 4 };

/* For a processor that has AMX and a process that may use it. Computes `rounds` times the four products of two tiles
 * with two others, each with its own sum. The elements must be random: AMX is a fifth faster on zeros. On return the
 * thread's tiles are configured as before, as other libraries in the process may rely on it; their contents are
 * zero. */
void probe_amx_products(const uint16_t *tiles, int rounds);

#endif
