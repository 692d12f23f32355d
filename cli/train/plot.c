/* The plot of plot.h. A curve of more steps than the plot has columns is drawn column by column, each from
 * its lowest to its highest loss, so that no peak is lost. */
#define _XOPEN_SOURCE 700
#include "plot.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 800, HEIGHT = 450, LEFT = 70, RIGHT = 20, TOP = 50, BOTTOM = 60, TICKS = 6, MEAN_PARTS = 50 };
enum { INNER_WIDTH = WIDTH - LEFT - RIGHT, INNER_HEIGHT = HEIGHT - TOP - BOTTOM };

struct plot {
    FILE *file;
    const float *losses;
    int64_t count;
    double max_step, max_loss; /* ends of the axes */
    double step_tick, loss_tick;
};

/* The distance between ticks: 1, 2 or 5 times a power of ten, so that the range has at most TICKS intervals. */
static double tick_of(double range)
{
    const double rough = range / TICKS, power = pow(10, floor(log10(rough)));
    const double times = rough / power;
    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

static double x_of(const struct plot *p, double step)
{
    return LEFT + INNER_WIDTH * step / p->max_step;
}

static double y_of(const struct plot *p, double loss)
{
    const double clipped = loss < p->max_loss ? loss : p->max_loss;
    return TOP + INNER_HEIGHT * (1 - clipped / p->max_loss);
}

/* The loss axis starts at zero; losses that are not finite are left out. */
static void set_axes(struct plot *p)
{
    double max = 0;
    for (int64_t i = 0; i < p->count; i++) {
        if (isfinite(p->losses[i]) && p->losses[i] > max) {
            max = p->losses[i];
        }
    }
    p->max_step = p->count > 1 ? (double)p->count : 1;
    p->step_tick = tick_of(p->max_step);
    p->loss_tick = tick_of(max > 0 ? max : 1);
    p->max_loss = p->loss_tick * ceil((max > 0 ? max : 1) / p->loss_tick);
}

static void put_text(const struct plot *p, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&': fputs("&amp;", p->file); break;
        case '<': fputs("&lt;", p->file); break;
        case '>': fputs("&gt;", p->file); break;
        default: fputc((unsigned char)*text < ' ' || (unsigned char)*text > '~' ? '?' : *text, p->file);
        }
    }
}

static void draw_axes(const struct plot *p)
{
    FILE *f = p->file;
    for (double loss = 0; loss <= p->max_loss * (1 + 1e-9); loss += p->loss_tick) {
        const double y = y_of(p, loss);
        fprintf(f, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, y,
                WIDTH - RIGHT, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, y + 4, loss);
    }
    for (double step = 0; step <= p->max_step * (1 + 1e-9); step += p->step_tick) {
        const double x = x_of(p, step);
        fprintf(f, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#555\"/>\n", x,
                HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5);
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.15g</text>\n", x, HEIGHT - BOTTOM + 20,
                step);
    }
    fprintf(f, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#555\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
            WIDTH - RIGHT);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", LEFT + INNER_WIDTH / 2,
            HEIGHT - 15);
    fprintf(f, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">loss</text>\n",
            TOP + INNER_HEIGHT / 2);
}

/* Draws the lowest and the highest loss of each column, in the order of the steps. */
static void draw_every_step(const struct plot *p)
{
    const int64_t columns = p->count < INNER_WIDTH ? p->count : INNER_WIDTH;
    fputs("<polyline fill=\"none\" stroke=\"#9ecae1\" stroke-width=\"1\" points=\"", p->file);
    for (int64_t n = 0; n < columns; n++) {
        double low = INFINITY, high = -INFINITY;
        const int64_t first = n * p->count / columns, end = (n + 1) * p->count / columns;
        for (int64_t i = first; i < end; i++) {
            if (isfinite(p->losses[i])) {
                low = fmin(low, (double)p->losses[i]);
                high = fmax(high, (double)p->losses[i]);
            }
        }
        /* the middle of steps first + 1 to end */
        const double x = x_of(p, (double)(first + end + 1) / 2);
        if (low < high) {
            fprintf(p->file, "%.1f,%.1f ", x, y_of(p, high));
        }
        if (low <= high) {
            fprintf(p->file, "%.1f,%.1f ", x, y_of(p, low));
        }
    }
    fputs("\"/>\n", p->file);
}

/* Draws an exponential moving average over about the last 1 / MEAN_PARTS of the curve. */
static void draw_mean(const struct plot *p)
{
    const double window = fmax(1, (double)p->count / MEAN_PARTS);
    const int64_t stride = p->count / INNER_WIDTH + 1;
    double mean = 0, weight = 0;
    fputs("<polyline fill=\"none\" stroke=\"#08519c\" stroke-width=\"2\" points=\"", p->file);
    for (int64_t i = 0; i < p->count; i++) {
        if (isfinite(p->losses[i])) {
            weight = fmin(weight + 1, window);
            mean += ((double)p->losses[i] - mean) / weight;
        }
        if (weight > 0 && (i % stride == 0 || i == p->count - 1)) {
            fprintf(p->file, "%.1f,%.1f ", x_of(p, (double)i + 1), y_of(p, mean));
        }
    }
    fputs("\"/>\n", p->file);
}

static void draw_legend(const struct plot *p)
{
    const int x = WIDTH - RIGHT - 150, y = TOP + 14;
    fprintf(p->file, "<path d=\"M%d %dh24\" stroke=\"#9ecae1\"/><text x=\"%d\" y=\"%d\">each step</text>\n",
            x, y, x + 32, y + 4);
    fprintf(p->file,
            "<path d=\"M%d %dh24\" stroke=\"#08519c\" stroke-width=\"2\"/>"
            "<text x=\"%d\" y=\"%d\">running mean</text>\n",
            x, y + 20, x + 32, y + 24);
}

static void draw(const struct plot *p, const char *title)
{
    fprintf(p->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(p->file, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, HEIGHT);
    fprintf(p->file, "<text x=\"%d\" y=\"28\" font-size=\"16\">", LEFT);
    put_text(p, title);
    fputs("</text>\n", p->file);
    draw_axes(p);
    draw_every_step(p);
    draw_mean(p);
    draw_legend(p);
    fputs("</svg>\n", p->file);
}

char *plot_losses(const char *title, const float *losses, int64_t count, size_t *size)
{
    char *text = NULL;
    struct plot p = {.losses = losses, .count = count, .file = open_memstream(&text, size)};
    if (p.file == NULL) {
        return NULL;
    }
    set_axes(&p);
    draw(&p, title);
    const bool failed = ferror(p.file) != 0;
    if (fclose(p.file) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
