/* Which way a map goes: the bytes that each way sends, and what it cannot do. */
#include "mpi/items.h"
#include "mpi/plan.h"
#include "mpi/ring.h"

bool agi_mpi_way_allowed(const agi_mpi_cut *cut, ag_mpi_way way, const char **why)
{
    const ag_problem *p = cut->p;
    const bool rows = (agi_has(p, AG_BIAS) && agi_mpi_has_rows(cut, p->bias_size)) ||
                      (agi_has(p, AG_MASK) && agi_mpi_has_rows(cut, p->mask_size));
    if (way == AG_MPI_RING_QUERIES && rows) {
        *why = "the rows of a bias or mask stay with their queries, so queries cannot travel";
        return false;
    }
    return true;
}

/* Of all steps of all ranks together, without regard to lengths. */
double agi_mpi_travelling_rows(const agi_mpi_cut *cut, agi_mpi_side guests)
{
    double rows = 0;
    for (int32_t home = 0; home < cut->ranks; home++) {
        for (int32_t owner = 0; owner < cut->ranks; owner++) {
            for (int n = 0; n < agi_mpi_chunks(cut) && owner != home; n++) {
                if (agi_has(cut->p, AG_PACKED) || agi_mpi_is_needed(cut, NULL, guests, home, owner, n)) {
                    rows += (double)agi_mpi_chunk_of(cut, guests, owner, n).length;
                }
            }
        }
    }
    return rows;
}

static double bytes_per_row(const agi_mpi_cut *cut, agi_map map, agi_mpi_side side,
                            agi_mpi_selection selection)
{
    const agi_mpi_items items = agi_mpi_items_of(cut->p, map, side, selection, NULL);
    double bytes = 0;
    for (int n = 0; n < items.count; n++) {
        const agi_mpi_item *x = &items.item[n];
        bytes += (double)(x->sequences * x->heads * x->channels) * (double)agi_mpi_element_bytes(x->dtype);
    }
    return bytes;
}

static double ring_bytes(const agi_mpi_cut *cut, agi_map map, agi_mpi_side guests, double rows)
{
    const bool returned = agi_mpi_kind_of(map) == AGI_MPI_WIDE_GRADS;
    return rows * (bytes_per_row(cut, map, guests, AGI_MPI_GUESTS) +
                   (returned ? bytes_per_row(cut, map, guests, AGI_MPI_SUMS) : 0));
}

/* Of every tensor all but a rank's own heads and rows is sent. */
static double exchange_bytes(const agi_mpi_cut *cut, agi_map map)
{
    double bytes = 0;
    for (agi_mpi_side side = AGI_MPI_QUERIES; side <= AGI_MPI_KEYS; side++) {
        double rows = 0;
        for (int32_t rank = 0; rank < cut->ranks; rank++) {
            rows += (double)agi_mpi_rows(cut, side, rank);
        }
        bytes += rows * (bytes_per_row(cut, map, side, AGI_MPI_INPUTS) +
                         bytes_per_row(cut, map, side, AGI_MPI_OUTPUTS));
    }
    const ag_problem *p = cut->p;
    if (agi_has(p, AG_BIAS) && agi_mpi_has_rows(cut, p->bias_size)) {
        bytes += (double)agi_count(p->bias_size) * (double)ag_dtype_size(p->aux_dtype);
    }
    if (agi_has(p, AG_MASK) && agi_mpi_has_rows(cut, p->mask_size)) {
        bytes += (double)agi_count(p->mask_size);
    }
    return bytes * (double)(cut->ranks - 1) / (double)cut->ranks;
}

double agi_mpi_bytes_of_way(const agi_mpi_cut *cut, agi_map map, ag_mpi_way way, const double rows[2])
{
    const bool queries = way == AG_MPI_RING_QUERIES && agi_mpi_kind_of(map) == AGI_MPI_WIDE_GRADS;
    const agi_mpi_side guests = queries ? AGI_MPI_QUERIES : AGI_MPI_KEYS;
    return way == AG_MPI_ALL_TO_ALL ? exchange_bytes(cut, map) : ring_bytes(cut, map, guests, rows[guests]);
}
