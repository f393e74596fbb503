/* Run a list of operations on feature maps, image by image, so that maps stay in a core's cache (see lowering.py).
 *
 * Feature maps are float32 in channels-last order. Except for images, they have a multiple of sixteen channels. Maps in
 * the arena have a border of zeros, which is read as padding and never written. Sums have the same order as in oneDNN's
 * AVX-512 kernels, and use fused multiply-adds, so that results are bit-identical to PyTorch's.
 *
 * Compile with -O3 -march=x86-64-v4 -ffp-contract=fast.
 */

#include <stdint.h>

#define LANES 16 /* float32 numbers in a vector of AVX-512 */
#define MAX_TAPS 16
#define MAX_SOURCES 8
#define MAX_EXTERNALS 64

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Location of an operation's pixels in a map. `offset` is the number of floats from the start of the buffer to the
 * first pixel. `row` and `pixel` are strides: the numbers of floats between rows and between pixels. */
typedef struct {
    int64_t buffer, offset, row, pixel;
} view;

/* Memory of a map. `external` is the number of an external tensor, or -1 for a buffer in the arena, which starts after
 * `offset` floats. `image` is the number of floats per image. `kept` is 1 if the buffer has space for all images of a
 * run, and 0 if it has space for one group of images. */
typedef struct {
    int64_t external, offset, image, kept;
} buffer;

enum { LOAD, CONVOLVE, SUM, SCALE, HALVE, SHUFFLE };

/* One operation.
 *
 * - `kind` is LOAD, CONVOLVE etc.; `height`, `width` and `outputs` (channels) are the shape of the output.
 * - For CONVOLVE, `inputs` is the number of input channels, `step` is the stride, and `taps` are the offsets, in floats,
 *   of the `n_taps` input pixels of an output pixel.
 * - For images, `plane` is the number of floats between colours.
 * - For SUM, the first `n_pools` of the `n_sources` sources are pooled, each source has a factor, and `scaled` is 1 if
 *   pooled pixels on the border of the map are scaled up, and 0 if not. For the meaning of `scaled` in SCALE, see
 *   scale().
 * - Afterwards, `add` is added, the sum is set to zero where `tape` is not positive, and `add_after_mask` is added. The
 *   result is written to `raw`, and its ReLU to `rectified`. Views with buffer -1 are absent. */
typedef struct {
    int64_t kind, height, width, inputs, outputs, step, n_taps, plane, n_pools, n_sources, scaled;
    int64_t top, left, map_height, map_width; /* first row and column of the output in its map, and the map's size */
    int64_t taps[MAX_TAPS];
    view sources[MAX_SOURCES];
    view add, tape, add_after_mask, raw, rectified;
    const float *weights, *bias;
    float factors[MAX_SOURCES];
} operation;

/* Operations `first` to `stop` (excluded), which run on `group` images before the next images. */
typedef struct {
    int64_t first, stop, group;
} segment;

/* The part of an operation's output that is computed. */
typedef struct {
    int64_t top, left, height, width;
} region;

/* The tensors and the image on which an operation runs. */
typedef struct {
    const buffer *buffers;
    float *const *externals;
    const int64_t *strides; /* floats per image of each external tensor; 0 for constants */
    float *arena;
    int64_t image, image_in_group;
} context;

#define INLINE static inline __attribute__((always_inline))

INLINE float *pixels_of(const context *ctx, const view *v) {
    if (v->buffer < 0)
        return 0;
    const buffer *b = ctx->buffers + v->buffer;
    if (b->external >= 0)
        return ctx->externals[b->external] + ctx->strides[b->external] * ctx->image + v->offset;
    return ctx->arena + b->offset + b->image * (b->kept ? ctx->image : ctx->image_in_group) + v->offset;
}

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec where_positive(vec condition, vec v) { return (vec)((mask)v & (condition > 0.0f)); }
INLINE vec rectify(vec v) { return where_positive(v, v); }

/* --- convolutions ------------------------------------------------------------------------------------------------- */

/* Pointers to an operation's maps, at the first pixel of an image or tile; null for absent maps. */
typedef struct {
    const float *add, *tape, *add_after_mask;
    float *raw, *rectified;
} tile_maps;

/* Compute 16 * BLOCKS output channels of PIXELS neighbouring pixels. */
INLINE void convolve_tile(const operation *o, const float *source, tile_maps maps, const float *weights,
                          const float *bias, const int inputs, const int step, const int PIXELS, const int BLOCKS) {
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
            if (maps.add)
                v += load(maps.add + p * o->add.pixel + b * LANES);
            if (maps.tape)
                v = where_positive(load(maps.tape + p * o->tape.pixel + b * LANES), v);
            if (maps.add_after_mask)
                v += load(maps.add_after_mask + p * o->add_after_mask.pixel + b * LANES);
            if (maps.raw)
                store(maps.raw + p * o->raw.pixel + b * LANES, v);
            if (maps.rectified)
                store(maps.rectified + p * o->rectified.pixel + b * LANES, rectify(v));
        }
    }
}

/* Pointer `p`, moved to row y, column x and channel 16 * b of the map `name`; null if the map is absent. */
#define MOVED(p, name, y, x, b) ((p) ? (p) + (y) * o->name.row + (x) * o->name.pixel + (b) * LANES : 0)

INLINE void convolve_rows(const operation *o, const float *source, tile_maps first, const int inputs, const int step) {
    const int64_t per_block = o->n_taps * inputs * LANES;
    const int n_blocks = (int)(o->outputs / LANES), width = (int)o->width;
    for (int y = 0; y < o->height; y++)
        for (int b = 0; b < n_blocks;) {
            const int pair = n_blocks - b >= 2;
            for (int x = 0; x < width;) {
                const float *from = source + y * step * o->sources[0].row + x * step * inputs;
                const tile_maps maps = {MOVED(first.add, add, y, x, b), MOVED(first.tape, tape, y, x, b),
                                        MOVED(first.add_after_mask, add_after_mask, y, x, b),
                                        MOVED(first.raw, raw, y, x, b), MOVED(first.rectified, rectified, y, x, b)};
                const float *weights = o->weights + b * per_block, *bias = o->bias ? o->bias + b * LANES : 0;
                const int n_left = width - x;
#define TILE(PIXELS, BLOCKS)                                                                                           \
    {                                                                                                                  \
        convolve_tile(o, from, maps, weights, bias, inputs, step, PIXELS, BLOCKS);                                     \
        x += PIXELS;                                                                                                   \
    }
                if (pair) {
                    if (n_left >= 8)
                        TILE(8, 2)
                    else if (n_left >= 4)
                        TILE(4, 2)
                    else
                        TILE(1, 2)
                } else {
                    if (n_left >= 16)
                        TILE(16, 1)
                    else if (n_left >= 8)
                        TILE(8, 1)
                    else if (n_left >= 4)
                        TILE(4, 1)
                    else
                        TILE(1, 1)
                }
            }
            b += pair ? 2 : 1;
        }
}

static void convolve(const operation *o, const context *ctx) {
    const float *source = pixels_of(ctx, &o->sources[0]);
    const tile_maps maps = {pixels_of(ctx, &o->add), pixels_of(ctx, &o->tape), pixels_of(ctx, &o->add_after_mask),
                            pixels_of(ctx, &o->raw), pixels_of(ctx, &o->rectified)};
#define CASE(INPUTS, STEP)                                                                                             \
    if (o->inputs == INPUTS && o->step == STEP)                                                                        \
        convolve_rows(o, source, maps, INPUTS, STEP);
    CASE(3, 1)
    CASE(16, 1)
    CASE(16, 2)
    CASE(32, 1)
    CASE(32, 2)
    CASE(64, 1)
}

/* --- pooling and sums --------------------------------------------------------------------------------------------- */

#define COLUMNS 4 /* columns that are pooled together, because their windows share pixels */

/* Sum the nine pixels of each window, times a weight, for `n` neighbouring columns. */
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

/* Scale up a sum on the border, where a window covers only six of nine pixels. The empty assembly statement prevents
 * the compiler from fusing the product with a later addition, so that the product is rounded. */
INLINE vec scale_border(vec v) {
    v *= 1.5f;
    __asm__("" : "+v"(v));
    return v;
}

typedef struct {
    const float *sources[MAX_SOURCES];
    float *raw, *rectified;
} sum_maps;

/* Sum poolings, then other maps times their factors, for `n` columns from (y, x) and sixteen channels from c. */
INLINE void sum_tile(const operation *o, const sum_maps *maps, const int64_t y, const int64_t x, const int64_t c,
                     const int n_pools, const int n_addends, const int n, const int edge_row,
                     const int edge_column) {
    vec v[COLUMNS] = {0};
#pragma GCC unroll 8
    for (int s = 0; s < n_pools; s++) {
        const view *from = &o->sources[s];
        vec pooled[COLUMNS];
        const float *p = maps->sources[s] + y * from->row + x * from->pixel + c;
        pool_tile(pooled, p, from->row, from->pixel, o->factors[s], n);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            if (edge_row)
                pooled[i] = scale_border(pooled[i]);
            if (edge_column)
                pooled[i] = scale_border(pooled[i]);
            if (s)
                v[i] += pooled[i];
            else
                v[i] = pooled[i];
        }
    }
#pragma GCC unroll 8
    for (int s = n_pools; s < n_pools + n_addends; s++) {
        const view *from = &o->sources[s];
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const vec addend = load(maps->sources[s] + y * from->row + (x + i) * from->pixel + c);
            if (s)
                v[i] += addend * o->factors[s];
            else
                v[i] = addend * o->factors[s];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        if (maps->raw)
            store(maps->raw + y * o->raw.row + (x + i) * o->raw.pixel + c, v[i]);
        if (maps->rectified)
            store(maps->rectified + y * o->rectified.row + (x + i) * o->rectified.pixel + c, rectify(v[i]));
    }
}

INLINE void sum_rows(const operation *o, const context *ctx, const int n_pools, const int n_addends) {
    sum_maps maps = {.raw = pixels_of(ctx, &o->raw), .rectified = pixels_of(ctx, &o->rectified)};
    for (int s = 0; s < n_pools + n_addends; s++)
        maps.sources[s] = pixels_of(ctx, &o->sources[s]);
    for (int64_t y = 0; y < o->height; y++) {
        const int edge_row = o->scaled && (y + o->top == 0 || y + o->top == o->map_height - 1);
        for (int64_t c = 0; c < o->outputs; c += LANES)
            for (int64_t x = 0; x < o->width;) {
                const int64_t column = x + o->left, last = o->map_width - 1;
                const int edge_column = o->scaled && (column == 0 || column == last);
                if (!edge_column && x + COLUMNS <= o->width && (!o->scaled || column + COLUMNS <= last)) {
                    sum_tile(o, &maps, y, x, c, n_pools, n_addends, COLUMNS, edge_row, 0);
                    x += COLUMNS;
                } else {
                    sum_tile(o, &maps, y, x, c, n_pools, n_addends, 1, edge_row, edge_column);
                    x++;
                }
            }
    }
}

static void sum(const operation *o, const context *ctx) {
#define SUMS(POOLS, ADDENDS)                                                                                           \
    if (o->n_pools == POOLS && o->n_sources == POOLS + ADDENDS) {                                                      \
        sum_rows(o, ctx, POOLS, ADDENDS);                                                                              \
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
    sum_rows(o, ctx, (int)o->n_pools, (int)(o->n_sources - o->n_pools));
}

/* First step of the backward pass of pooling: multiply each pixel by nine over the number of pixels in its window.
 * Corners are rounded twice if `scaled` is 2, and once if it is 1. */
static void scale(const operation *o, const context *ctx) {
    const float *source = pixels_of(ctx, &o->sources[0]);
    float *raw = pixels_of(ctx, &o->raw);
    for (int y = 0; y < o->height; y++) {
        const int edge_row = y == 0 || y == o->height - 1;
        for (int x = 0; x < o->width; x++) {
            const int edge_column = x == 0 || x == o->width - 1;
            const int corner = edge_row && edge_column;
            const float factor = corner && o->scaled == 1 ? 2.25f : edge_row || edge_column ? 1.5f : 1.0f;
            for (int c = 0; c < o->outputs; c += LANES) {
                vec v = load(source + y * o->sources[0].row + x * o->sources[0].pixel + c) * factor;
                if (corner && o->scaled == 2)
                    v *= 1.5f;
                store(raw + y * o->raw.row + x * o->raw.pixel + c, v);
            }
        }
    }
}

/* Average each block of 2x2 pixels. */
static void halve(const operation *o, const context *ctx) {
    const float *source = pixels_of(ctx, &o->sources[0]);
    float *raw = pixels_of(ctx, &o->raw);
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

/* Subtract the mean from an image whose colours are `plane` floats apart. */
static void load_image(const operation *o, const context *ctx) {
    const float *source = pixels_of(ctx, &o->sources[0]);
    float *raw = pixels_of(ctx, &o->raw);
    for (int y = 0; y < o->height; y++)
        for (int x = 0; x < o->width; x++)
            for (int c = 0; c < o->outputs; c++)
                raw[y * o->raw.row + x * o->raw.pixel + c] =
                    source[y * o->sources[0].row + x * o->sources[0].pixel + c * o->plane] - o->bias[c];
}

/* Convert channels to blocks of 2x2 pixels: input channel = 4 * colour + 2 * row + column. */
static void shuffle(const operation *o, const context *ctx) {
    const float *source = pixels_of(ctx, &o->sources[0]);
    float *raw = pixels_of(ctx, &o->raw);
    for (int y = 0; y < o->height; y++)
        for (int c = 0; c < o->outputs; c++)
            for (int x = 0; x < o->width; x++)
                raw[y * o->raw.row + x * o->raw.pixel + c * o->plane] =
                    source[(y / 2) * o->sources[0].row + (x / 2) * o->sources[0].pixel + 4 * c + 2 * (y & 1) + (x & 1)];
}

static void (*const KERNELS[])(const operation *, const context *) = {
    [LOAD] = load_image, [CONVOLVE] = convolve, [SUM] = sum, [SCALE] = scale, [HALVE] = halve, [SHUFFLE] = shuffle,
};

/* The SHA-256 of this file, which shows whether the library was compiled from the installed source (hatch_build.py). */
#ifndef ROBUST201_SOURCE
#define ROBUST201_SOURCE ""
#endif
const char *robust201_source(void) { return ROBUST201_SOURCE; }

/* Return the size of a structure, for comparison with the caller's structure. */
int64_t robust201_layout(int index) {
    const int64_t sizes[] = {sizeof(operation), sizeof(buffer), sizeof(segment), sizeof(region)};
    return sizes[index];
}

/* Run segments of a list of operations on images. Kept buffers have space for `max_images` images. */
void robust201_run(const operation *operations, const segment *segments, int64_t n_segments, const buffer *buffers,
                   float *const *externals, const int64_t *strides, float *arena, int64_t n_images,
                   int64_t max_images) {
    for (int64_t start = 0; start < n_images; start += max_images) {
        const int64_t count = n_images - start < max_images ? n_images - start : max_images;
        float *chunk_externals[MAX_EXTERNALS];
        for (int i = 0; i < MAX_EXTERNALS; i++)
            chunk_externals[i] = externals[i] ? externals[i] + strides[i] * start : 0;
        for (const segment *s = segments; s < segments + n_segments; s++)
            for (int64_t first = 0; first < count; first += s->group) {
                const int64_t stop = first + s->group < count ? first + s->group : count;
                for (const operation *o = operations + s->first; o < operations + s->stop; o++)
                    for (int64_t image = first; image < stop; image++) {
                        const context ctx = {buffers, chunk_externals, strides, arena, image, image - first};
                        KERNELS[o->kind](o, &ctx);
                    }
            }
    }
}

/* --- regions ------------------------------------------------------------------------------------------------------ */

INLINE void move(view *v, int64_t y, int64_t x) { v->offset += y * v->row + x * v->pixel; }

/* Return a copy of an operation of the forward pass that computes only one region of its output. */
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

/* Save the region of a map before it is overwritten, or restore it; return the memory for the next map's values. */
static float *save_or_restore(const operation *part, const view *v, const context *ctx, float *saved, int restore) {
    float *map = pixels_of(ctx, v);
    if (!map || !ctx->buffers[v->buffer].kept)
        return saved;
    const int64_t n = part->width * part->outputs;
    for (int64_t y = 0; y < part->height; y++, saved += n) {
        float *row = map + y * v->row;
        if (restore)
            copy(row, saved, n);
        else
            copy(saved, row, n);
    }
    return saved;
}

/* Prefetch the region of a kept map before it is overwritten. The region is not in a cache, and its rows are too far
 * apart for the hardware to predict. */
static void prefetch(const operation *part, const view *v, const context *ctx) {
    const float *map = pixels_of(ctx, v);
    if (!map || !ctx->buffers[v->buffer].kept)
        return;
    for (int64_t y = 0; y < part->height; y++)
        for (int64_t i = 0; i < part->width * part->outputs; i += LANES)
            __builtin_prefetch(map + y * v->row + i, 1);
}

/* Recompute a region of each operation's maps for `n_images` images, in groups of `group` images. Overwritten values of
 * kept maps are saved in `saved_values`, which has `saved_stride` floats per image. If `rejected` is given, nothing is
 * computed, and the saved values of the images with nonzero `rejected` are restored. */
void robust201_run_regions(const operation *operations, const region *regions, int64_t n_operations,
                           const buffer *buffers, float *const *externals, const int64_t *strides, float *arena,
                           float *saved_values, int64_t saved_stride, const uint8_t *rejected, int64_t n_images,
                           int64_t group) {
    for (int64_t start = 0; start < n_images; start += group) {
        const int64_t end = start + group < n_images ? start + group : n_images;
        int64_t saved_offset = 0;
        for (int64_t i = 0; i < n_operations; i++) {
            const operation part = part_of(operations + i, regions + i);
            int64_t next_offset = saved_offset;
            for (int64_t image = start; image < end; image++) {
                if (rejected && !rejected[image])
                    continue;
                const context ctx = {buffers, externals, strides, arena, image, image - start};
                const context next_context = {buffers, externals, strides, arena, image + 1, image + 1 - start};
                if (image + 1 < end) {
                    prefetch(&part, &part.raw, &next_context);
                    prefetch(&part, &part.rectified, &next_context);
                }
                float *first_saved = saved_values + image * saved_stride + saved_offset;
                float *next_saved = save_or_restore(&part, &part.raw, &ctx, first_saved, rejected != 0);
                next_saved = save_or_restore(&part, &part.rectified, &ctx, next_saved, rejected != 0);
                next_offset = saved_offset + (next_saved - first_saved);
                if (!rejected)
                    KERNELS[part.kind](&part, &ctx);
            }
            saved_offset = next_offset;
        }
    }
}
