/* Runs a list of operations on feature maps, image by image, so that maps stay in a core's cache (see lowering.py).
 *
 * Feature maps are float32, pixel by pixel with their channels together, channels a multiple of sixteen but for images.
 * What is read with the pixels around it has a border of zeros, which nobody writes. Sums are made in the order in
 * which oneDNN's AVX-512 kernels make them, with fused multiply-adds, so that a map has the bits that PyTorch gives it.
 *
 * Compile with -O3 -march=x86-64-v4 -ffp-contract=fast.
 */

#include <stdint.h>

#define LANES 16
#define MAX_TAPS 16
#define MAX_SOURCES 8
#define MAX_EXTERNALS 64

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Where an operation finds one map: floats from its buffer's start to the first pixel, to the next row, pixel. */
typedef struct {
    int64_t buffer, offset, row, pixel;
} view;

/* A buffer: external ones are numbered, others lie in the arena; floats from one image's to the next one's; whether it
 * holds every image of a run or only those of a group. */
typedef struct {
    int64_t external, offset, image, kept;
} buffer;

enum { LOAD, CONVOLVE, SUM, SCALE, HALVE, SHUFFLE };

typedef struct {
    int64_t kind, height, width, inputs, outputs, step, n_taps, plane, n_pools, n_sources, scaled;
    int64_t top, left, whole_height, whole_width; /* of what it gives: where this part of a map lies */
    int64_t taps[MAX_TAPS];
    view sources[MAX_SOURCES];
    view add, tape, past, raw, rectified;
    const float *weights, *bias;
    float factors[MAX_SOURCES];
} operation;

typedef struct {
    int64_t first, stop, group;
} segment;

/* The pixels that an operation gives, if not all. */
typedef struct {
    int64_t top, left, height, width;
} region;

typedef struct {
    const buffer *buffers;
    float *const *externals;
    const int64_t *strides; /* of the externals that are the caller's: floats from image to image */
    float *arena;
    int64_t image, in_group;
} place;

#define INLINE static inline __attribute__((always_inline))

INLINE float *find(const place *at, const view *v) {
    if (v->buffer < 0)
        return 0;
    const buffer *b = at->buffers + v->buffer;
    if (b->external >= 0)
        return at->externals[b->external] + at->strides[b->external] * at->image + v->offset;
    return at->arena + b->offset + b->image * (b->kept ? at->image : at->in_group) + v->offset;
}

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec where_positive(vec condition, vec v) { return (vec)((mask)v & (condition > 0.0f)); }
INLINE vec rectify(vec v) { return where_positive(v, v); }

/* --- convolutions ------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *add, *tape, *past;
    float *raw, *rectified;
} ends;

/* PIXELS neighbouring pixels of BLOCKS times sixteen outputs. */
INLINE void convolve_tile(const operation *o, const float *source, ends e, const float *weights, const float *bias,
                          const int inputs, const int step, const int PIXELS, const int BLOCKS) {
    vec sum[2][16];
    const int64_t n_taps = o->n_taps, per_block = n_taps * inputs * LANES;
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++)
#pragma GCC unroll 32
        for (int p = 0; p < PIXELS; p++)
            sum[b][p] = (vec){0};
    const float *w = weights;
    for (int64_t t = 0; t < n_taps; t++) {
        const float *x = source + o->taps[t];
        for (int c = 0; c < inputs; c++, w += LANES) {
            vec kernel[2];
#pragma GCC unroll 4
            for (int b = 0; b < BLOCKS; b++)
                kernel[b] = load(w + b * per_block);
#pragma GCC unroll 32
            for (int p = 0; p < PIXELS; p++) {
                const float value = x[p * step * inputs + c];
#pragma GCC unroll 4
                for (int b = 0; b < BLOCKS; b++)
                    sum[b][p] += value * kernel[b];
            }
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) {
        const vec shift = bias ? load(bias + b * LANES) : (vec){0};
#pragma GCC unroll 32
        for (int p = 0; p < PIXELS; p++) {
            vec v = sum[b][p];
            if (bias)
                v += shift;
            if (e.add)
                v += load(e.add + p * o->add.pixel + b * LANES);
            if (e.tape)
                v = where_positive(load(e.tape + p * o->tape.pixel + b * LANES), v);
            if (e.past)
                v += load(e.past + p * o->past.pixel + b * LANES);
            if (e.raw)
                store(e.raw + p * o->raw.pixel + b * LANES, v);
            if (e.rectified)
                store(e.rectified + p * o->rectified.pixel + b * LANES, rectify(v));
        }
    }
}

#define MOVED(p, name, y, x, b) ((p) ? (p) + (y) * o->name.row + (x) * o->name.pixel + (b) * LANES : 0)

INLINE void convolve_rows(const operation *o, const float *source, ends all, const int inputs, const int step) {
    const int64_t per_block = o->n_taps * inputs * LANES;
    const int n_blocks = (int)(o->outputs / LANES), width = (int)o->width;
    for (int y = 0; y < o->height; y++)
        for (int b = 0; b < n_blocks;) {
            const int pair = n_blocks - b >= 2;
            for (int x = 0; x < width;) {
                const float *from = source + y * step * o->sources[0].row + x * step * inputs;
                const ends e = {MOVED(all.add, add, y, x, b), MOVED(all.tape, tape, y, x, b),
                                MOVED(all.past, past, y, x, b), MOVED(all.raw, raw, y, x, b),
                                MOVED(all.rectified, rectified, y, x, b)};
                const float *weights = o->weights + b * per_block, *bias = o->bias ? o->bias + b * LANES : 0;
                const int left = width - x;
#define TILE(PIXELS, BLOCKS)                                                                                           \
    {                                                                                                                  \
        convolve_tile(o, from, e, weights, bias, inputs, step, PIXELS, BLOCKS);                                 \
        x += PIXELS;                                                                                                   \
    }
                if (pair) {
                    if (left >= 8)
                        TILE(8, 2)
                    else if (left >= 4)
                        TILE(4, 2)
                    else
                        TILE(1, 2)
                } else {
                    if (left >= 16)
                        TILE(16, 1)
                    else if (left >= 8)
                        TILE(8, 1)
                    else if (left >= 4)
                        TILE(4, 1)
                    else
                        TILE(1, 1)
                }
            }
            b += pair ? 2 : 1;
        }
}

static void convolve(const operation *o, const place *at) {
    const float *source = find(at, &o->sources[0]);
    const ends e = {find(at, &o->add), find(at, &o->tape), find(at, &o->past), find(at, &o->raw),
                    find(at, &o->rectified)};
#define CASE(INPUTS, STEP)                                                                                             \
    if (o->inputs == INPUTS && o->step == STEP)                                                                        \
        convolve_rows(o, source, e, INPUTS, STEP);
    CASE(3, 1)
    CASE(16, 1)
    CASE(16, 2)
    CASE(32, 1)
    CASE(32, 2)
    CASE(64, 1)
}

/* --- pooling and sums --------------------------------------------------------------------------------------------- */

#define COLUMNS 4 /* that are pooled together: they share what they load */

/* Sums of nine, for `n` neighbouring columns, times a weight. */
INLINE void pool_tile(vec *pooled, const float *p, int64_t row, int64_t pixel, const float weight, const int n) {
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        pooled[i] = (vec){0};
#pragma GCC unroll 3
    for (int y = -1; y <= 1; y++) {
        vec line[COLUMNS + 2];
#pragma GCC unroll 6
        for (int i = 0; i < n + 2; i++)
            line[i] = load(p + y * row + (i - 1) * pixel);
#pragma GCC unroll 3
        for (int x = 0; x < 3; x++)
#pragma GCC unroll 4
            for (int i = 0; i < n; i++)
                pooled[i] += line[i + x] * weight;
    }
}

/* On the border a window covers two thirds of nine pixels. The product is rounded before anything is added to it. */
INLINE vec of_border(vec v) {
    v *= 1.5f;
    __asm__("" : "+v"(v));
    return v;
}

typedef struct {
    const float *sources[MAX_SOURCES];
    float *raw, *rectified;
} sum_ends;

/* Poolings first, then other maps times their factors: `n` columns from (y, x) on, channels from c. */
INLINE void sum_tile(const operation *o, const sum_ends *e, const int64_t y, const int64_t x, const int64_t c,
                     const int n_pools, const int n_others, const int n, const int edge, const int side) {
    vec v[COLUMNS] = {0};
#pragma GCC unroll 8
    for (int s = 0; s < n_pools; s++) {
        const view *from = &o->sources[s];
        vec pooled[COLUMNS];
        const float *p = e->sources[s] + y * from->row + x * from->pixel + c;
        pool_tile(pooled, p, from->row, from->pixel, o->factors[s], n);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            if (edge)
                pooled[i] = of_border(pooled[i]);
            if (side)
                pooled[i] = of_border(pooled[i]);
            if (s)
                v[i] += pooled[i];
            else
                v[i] = pooled[i];
        }
    }
#pragma GCC unroll 8
    for (int s = n_pools; s < n_pools + n_others; s++) {
        const view *from = &o->sources[s];
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const vec other = load(e->sources[s] + y * from->row + (x + i) * from->pixel + c);
            if (s)
                v[i] += other * o->factors[s];
            else
                v[i] = other * o->factors[s];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        if (e->raw)
            store(e->raw + y * o->raw.row + (x + i) * o->raw.pixel + c, v[i]);
        if (e->rectified)
            store(e->rectified + y * o->rectified.row + (x + i) * o->rectified.pixel + c, rectify(v[i]));
    }
}

INLINE void sum_rows(const operation *o, const place *at, const int n_pools, const int n_others) {
    sum_ends e = {.raw = find(at, &o->raw), .rectified = find(at, &o->rectified)};
    for (int s = 0; s < n_pools + n_others; s++)
        e.sources[s] = find(at, &o->sources[s]);
    for (int64_t y = 0; y < o->height; y++) {
        const int edge = o->scaled && (y + o->top == 0 || y + o->top == o->whole_height - 1);
        for (int64_t c = 0; c < o->outputs; c += LANES)
            for (int64_t x = 0; x < o->width;) {
                const int64_t column = x + o->left, last = o->whole_width - 1;
                const int side = o->scaled && (column == 0 || column == last);
                if (!side && x + COLUMNS <= o->width && (!o->scaled || column + COLUMNS <= last)) {
                    sum_tile(o, &e, y, x, c, n_pools, n_others, COLUMNS, edge, 0);
                    x += COLUMNS;
                } else {
                    sum_tile(o, &e, y, x, c, n_pools, n_others, 1, edge, side);
                    x++;
                }
            }
    }
}

static void sum(const operation *o, const place *at) {
#define SUMS(POOLS, OTHERS)                                                                                            \
    if (o->n_pools == POOLS && o->n_sources == POOLS + OTHERS) {                                                       \
        sum_rows(o, at, POOLS, OTHERS);                                                                                \
        return;                                                                                                        \
    }
    SUMS(0, 1)
    SUMS(0, 2)
    SUMS(1, 0)
    SUMS(1, 1)
    SUMS(1, 2)
    SUMS(2, 0)
    SUMS(2, 1)
    SUMS(3, 0)
    sum_rows(o, at, (int)o->n_pools, (int)(o->n_sources - o->n_pools));
}

/* The way back of pooling begins with the border: nine over the number of pixels that a window covers. `scaled` 2
 * rounds a corner twice, 1 once. */
static void scale(const operation *o, const place *at) {
    const float *source = find(at, &o->sources[0]);
    float *raw = find(at, &o->raw);
    for (int y = 0; y < o->height; y++) {
        const int edge = y == 0 || y == o->height - 1;
        for (int x = 0; x < o->width; x++) {
            const int side = x == 0 || x == o->width - 1;
            const float first = edge && side && o->scaled == 1 ? 2.25f : edge || side ? 1.5f : 1.0f;
            for (int c = 0; c < o->outputs; c += LANES) {
                vec v = load(source + y * o->sources[0].row + x * o->sources[0].pixel + c) * first;
                if (edge && side && o->scaled == 2)
                    v *= 1.5f;
                store(raw + y * o->raw.row + x * o->raw.pixel + c, v);
            }
        }
    }
}

static void halve(const operation *o, const place *at) {
    const float *source = find(at, &o->sources[0]);
    float *raw = find(at, &o->raw);
    const int64_t row = o->sources[0].row, pixel = o->sources[0].pixel;
    for (int y = 0; y < o->height; y++)
        for (int x = 0; x < o->width; x++)
            for (int c = 0; c < o->outputs; c += LANES) {
                const float *p = source + 2 * y * row + 2 * x * pixel + c;
                vec v = load(p) * 0.25f;
                v += load(p + pixel) * 0.25f;
                v += load(p + row) * 0.25f;
                v += load(p + row + pixel) * 0.25f;
                store(raw + y * o->raw.row + x * o->raw.pixel + c, v);
            }
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* Pixels, colour by colour `block` floats apart, minus the mean. */
static void load_image(const operation *o, const place *at) {
    const float *source = find(at, &o->sources[0]);
    float *raw = find(at, &o->raw);
    for (int y = 0; y < o->height; y++)
        for (int x = 0; x < o->width; x++)
            for (int c = 0; c < o->outputs; c++)
                raw[y * o->raw.row + x * o->raw.pixel + c] =
                    source[y * o->sources[0].row + x * o->sources[0].pixel + c * o->plane] - o->bias[c];
}

/* Four neighbouring pixels from their colours: input channel = 4 * colour + 2 * row + column. */
static void shuffle(const operation *o, const place *at) {
    const float *source = find(at, &o->sources[0]);
    float *raw = find(at, &o->raw);
    for (int y = 0; y < o->height; y++)
        for (int c = 0; c < o->outputs; c++)
            for (int x = 0; x < o->width; x++)
                raw[y * o->raw.row + x * o->raw.pixel + c * o->plane] =
                    source[(y / 2) * o->sources[0].row + (x / 2) * o->sources[0].pixel + 4 * c + 2 * (y & 1) + (x & 1)];
}

static void (*const KINDS[])(const operation *, const place *) = {
    [LOAD] = load_image, [CONVOLVE] = convolve, [SUM] = sum, [SCALE] = scale, [HALVE] = halve, [SHUFFLE] = shuffle,
};

/* The SHA-256 of this file, by which the caller knows whether it is the one beside it (hatch_build.py). */
#ifndef ROBUST201_SOURCE
#define ROBUST201_SOURCE ""
#endif
const char *robust201_source(void) { return ROBUST201_SOURCE; }

/* Sizes of the structures, for the caller to compare with its own. */
int64_t robust201_layout(int which) {
    const int64_t sizes[] = {sizeof(operation), sizeof(buffer), sizeof(segment), sizeof(region)};
    return sizes[which];
}

/* Run segments of a list of operations on images; `at_once` is how many the buffers that are kept hold. */
void robust201_run(const operation *operations, const segment *segments, int64_t n_segments, const buffer *buffers,
                   float *const *externals, const int64_t *strides, float *arena, int64_t n_images, int64_t at_once) {
    for (int64_t start = 0; start < n_images; start += at_once) {
        const int64_t count = n_images - start < at_once ? n_images - start : at_once;
        float *here[MAX_EXTERNALS];
        for (int e = 0; e < MAX_EXTERNALS; e++)
            here[e] = externals[e] ? externals[e] + strides[e] * start : 0;
        for (const segment *s = segments; s < segments + n_segments; s++)
            for (int64_t first = 0; first < count; first += s->group) {
                const int64_t stop = first + s->group < count ? first + s->group : count;
                for (const operation *o = operations + s->first; o < operations + s->stop; o++)
                    for (int64_t image = first; image < stop; image++) {
                        const place at = {buffers, here, strides, arena, image, image - first};
                        KINDS[o->kind](o, &at);
                    }
            }
    }
}

/* --- windows ------------------------------------------------------------------------------------------------------ */

INLINE void move(view *v, int64_t y, int64_t x) { v->offset += y * v->row + x * v->pixel; }

/* The operation that gives one region: of those of the way forward. */
static operation part_of(const operation *o, const region *r) {
    operation part = *o;
    const int64_t scale = o->kind == HALVE ? 2 : o->step;
    for (int64_t s = 0; s < o->n_sources; s++)
        move(&part.sources[s], scale * r->top, scale * r->left);
    move(&part.add, r->top, r->left);
    move(&part.raw, r->top, r->left);
    move(&part.rectified, r->top, r->left);
    part.top = r->top;
    part.left = r->left;
    part.height = r->height;
    part.width = r->width;
    return part;
}

INLINE void copy(float *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* Keep the region of a map that is to be written, or put it back; gives where the next one is kept. */
static float *keep(const operation *part, const view *v, const place *at, float *kept, int back) {
    float *map = find(at, v);
    if (!map || !at->buffers[v->buffer].kept)
        return kept;
    const int64_t n = part->width * part->outputs;
    for (int64_t y = 0; y < part->height; y++, kept += n) {
        float *row = map + y * v->row;
        if (back)
            copy(row, kept, n);
        else
            copy(kept, row, n);
    }
    return kept;
}

/* Fetch the region of a map that is to be written, which no cache holds: rows are too far apart to be foreseen. */
static void fetch(const operation *part, const view *v, const place *at) {
    const float *map = find(at, v);
    if (!map || !at->buffers[v->buffer].kept)
        return;
    for (int64_t y = 0; y < part->height; y++)
        for (int64_t i = 0; i < part->width * part->outputs; i += LANES)
            __builtin_prefetch(map + y * v->row + i, 1);
}

/* Give a region of each operation's maps anew, for images from `first` to `stop`, `group` in turn. What was in those
 * that are kept is noted in `log`, `per_image` floats each. With `back`, put it back instead where `back` is not 0. */
void robust201_run_regions(const operation *operations, const region *regions, int64_t n_operations,
                           const buffer *buffers, float *const *externals, const int64_t *strides, float *arena,
                           float *log, int64_t per_image, const uint8_t *back, int64_t stop, int64_t group) {
    for (int64_t start = 0; start < stop; start += group) {
        const int64_t end = start + group < stop ? start + group : stop;
        int64_t noted = 0;
        for (int64_t i = 0; i < n_operations; i++) {
            const operation part = part_of(operations + i, regions + i);
            int64_t next = noted;
            for (int64_t image = start; image < end; image++) {
                if (back && !back[image])
                    continue;
                const place at = {buffers, externals, strides, arena, image, image - start};
                const place next_one = {buffers, externals, strides, arena, image + 1, image + 1 - start};
                if (image + 1 < end) {
                    fetch(&part, &part.raw, &next_one);
                    fetch(&part, &part.rectified, &next_one);
                }
                float *own = log + image * per_image + noted;
                float *behind = keep(&part, &part.raw, &at, own, back != 0);
                behind = keep(&part, &part.rectified, &at, behind, back != 0);
                next = noted + (behind - own);
                if (!back)
                    KINDS[part.kind](&part, &at);
            }
            noted = next;
        }
    }
}
