/* A page: its variables with their numbers, and how they are written as HTML. It knows nothing of attention: which
 * variables there are is for those who fill it in, and what they mean for the script in page/. */
#ifndef ATTNGRAD_VIEW_PAGE_H
#define ATTNGRAD_VIEW_PAGE_H

#include <attngrad.h>
#include <stdbool.h>

enum {
    AGV_MAX_VARIABLES = 64, /* of a head, and of the layer */
    AGV_MAX_LINES = 24,     /* facts, notes */
    AGV_MAX_STEPS = 21,
    AGV_DOUBLE_ALONG = 256, /* variables of more numbers are float32 along the tangent */
    AGV_LINE_SIZE = 240,
    AGV_MAX_PAGE = 20 * 1000 * 1000, /* bytes of the file */
    AGV_MAX_FRAME = 300 * 1000       /* bytes of what is not data */
};

/* Numbers of a variable. */
typedef struct agv_array {
    double *values; /* NULL: none */
    int64_t count;
    int width; /* bytes per number in the file: 8 float64, 4 float32, 1 whole numbers from 0 to 255 */
} agv_array;

/* Of all numbers of a variable except those of hidden pairs; NaN and infinities only counted. */
typedef struct agv_stats {
    double sum, min, max;
    double squares[3]; /* sums of squares of the small, the middle and the large numbers; see agv_norm */
    int64_t finite, nan, infinite, hidden;
} agv_stats;

/* Either full has every number; or mean and peak have one number per block of them, the mean and the one of largest
 * magnitude, and window those of a part. along: at each step along the tangent, one after another. */
typedef struct agv_variable {
    char name[8];
    char
        axes[3]; /* the letters of its two indices: i query, j key, c m n channels; r: no such axis, size 1 */
    int64_t shape[2];
    bool is_flag;   /* its numbers are 0 and 1 */
    bool is_absent; /* an input that was not given: zeros */
    agv_stats stats;
    agv_array full, mean, peak, window, along;
    int64_t *pooled; /* numbers per block, while they are collected */
} agv_variable;

typedef struct agv_list {
    int count;
    agv_variable items[AGV_MAX_VARIABLES];
} agv_list;

/* Rows and columns of the attention matrices that a page has: every one, or blocks of pool[0] x pool[1] and a window
 * of queries window[0] .. window[1] - 1 and keys window[2] .. window[3] - 1. */
typedef struct agv_extent {
    bool is_full;
    int width; /* as in agv_array */
    int64_t pool[2], window[4];
} agv_extent;

typedef struct agv_head {
    int64_t batch, head;
    double slope;     /* of ALiBi */
    int64_t first[2]; /* positions of query 0 and key 0 */
    agv_extent extent;
    agv_list variables;
    int64_t along
        [4]; /* queries along[0] .. along[1] - 1 and keys along[2] .. along[3] - 1: those whose numbers are
                         known along the tangent */
} agv_head;

typedef struct agv_lines {
    int count;
    char lines[AGV_MAX_LINES][AGV_LINE_SIZE];
} agv_lines;

typedef struct agv_page {
    char title[AGV_LINE_SIZE];
    agv_lines facts, notes;
    uint32_t maps; /* AG_MAP_*: those that it shows */
    double scale, softcap;
    bool has_dropout, has_bias, has_sink, has_dL, has_tB, has_tdL;
    bool has_alibi, has_given_bias; /* what the bias is the sum of: ALiBi; a bias or a table */
    int64_t layer_heads;            /* 0: no layer */
    agv_list layer;                 /* the layer's own variables */
    agv_head *heads;                /* malloc */
    int64_t n_heads;
    int n_steps;
    uint32_t along_maps; /* those whose results are known at the steps */
    double steps[AGV_MAX_STEPS];
} agv_page;

void agv_page_free(agv_page *page);

/* Copies a text to to[AGV_LINE_SIZE]; one that is too long ends with an ellipsis after a whole character. */
void agv_copy_text(char *to, const char *text);

void agv_add_line(agv_lines *lines, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Adds a variable of this name without numbers. */
agv_variable *agv_add_variable(agv_list *list, const char *name, const char *axes, int64_t rows,
                               int64_t columns);

/* Returns NULL if there is none. */
agv_variable *agv_find_variable(agv_list *list, const char *name);

/* Numbers of a variable in a window of queries and keys, written as agv_extent.window is. */
int64_t agv_count_in(const agv_variable *v, const int64_t window[4]);

/* Makes room for a variable's numbers as the extent says; refuses a window that ends before it begins. */
ag_status agv_make_room(agv_variable *v, const agv_extent *extent);

/* Takes rows row0 .. row0 + rows - 1 of a variable. hidden: not 0 if the number belongs to a pair of a query and a key
 * that it does not see; NULL: no number does. */
void agv_collect(agv_variable *v, const agv_extent *extent, int64_t row0, int64_t rows, const double *values,
                 const double *hidden);

/* The norm of the finite numbers, without overflow or underflow on the way to it. */
double agv_norm(const agv_stats *stats);

/* After the last row: the means of the blocks. */
void agv_finish(agv_variable *v);

/* Takes rows row0 .. row0 + rows - 1 of a variable at one step along the tangent, and keeps those of the part, which is
 * written as agv_head.along is. */
ag_status agv_collect_along(const agv_page *page, agv_variable *v, const int64_t part[4], int step,
                            int64_t row0, int64_t rows, const double *values);

/* The whole file; *bytes is malloc's. */
ag_status agv_page_write(const agv_page *page, char **bytes, size_t *size);

#endif
