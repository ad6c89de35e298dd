/* The MLP of mlp.py, PPO's objective and Adam's step, for networks that are small enough to stay in the caches.

   `kernel.py` compiles this file for the CPU that it runs on, and holds it against NumPy before anyone uses it. All
   arrays are float32 and contiguous, parameters lie as in mlp.py: of each hidden layer the weights [groups, in, out] and
   biases [groups, out], then policy.weight [top, K], policy.bias [K], value.weight [top], value.bias [1], log_std [F].

   A row of the results depends on its own row of the inputs alone, to the last bit: sums over a layer's inputs run in
   the same order wherever a row stands. Nothing here hides a number that is not finite. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#define ROWS 6 /* of a tile: with 2 vectors each, its sums just fit the 16 registers of AVX2 */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t bits __attribute__((vector_size(4 * LANES)));
typedef vec loose __attribute__((aligned(4), may_alias)); /* a vector anywhere in memory */

INLINE vec load(const float *from) { return *(const loose *)from; }
INLINE void store(float *to, vec value) { *(loose *)to = value; }
INLINE vec either(bits which, vec yes, vec no) { return (vec)((which & (bits)yes) | (~which & (bits)no)); }

INLINE vec broadcast(float x) { return x - (vec){0}; }

/* a b + c, rounded once where the CPU can. Said outright and compiled with -ffp-contract=off: left to itself, a compiler
   fuses the same line in one place and not in another, and a row's last bit would depend on how many are with it. */
INLINE vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE float fused1(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) || defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE float total(vec v) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* c [rows, cols] = a [rows, depth] b [depth, cols] + start [cols] */
typedef struct {
    int64_t rows, cols, depth;
    const float *a;
    int64_t a_row, a_depth; /* from one row of a to the next, and from one column to the next */
    const float *b;         /* rows of b lie `cols` apart, and so do those of c */
    float *c;
    const float *start; /* NULL: zeros */
} Product;

INLINE void tile(const Product *p, int rows, int vecs, int64_t row, int64_t col) {
    vec sum[ROWS][2];
    const int64_t a_row = p->a_row, a_depth = p->a_depth, cols = p->cols, depth = p->depth;
    const float *a = p->a + row * a_row, *b = p->b + col;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) sum[r][v] = p->start ? load(p->start + col + v * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++) {
        const vec b0 = load(b), b1 = vecs > 1 ? load(b + LANES) : b0;
        for (int r = 0; r < rows; r++) {
            const vec scale = broadcast(a[r * a_row]);
            sum[r][0] = fused(scale, b0, sum[r][0]);
            if (vecs > 1) sum[r][1] = fused(scale, b1, sum[r][1]);
        }
        a += a_depth;
        b += cols;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) store(p->c + (row + r) * cols + col + v * LANES, sum[r][v]);
}

/* Fewer columns than a vector has. */
static void narrow_row(const Product *p, int64_t row) {
    const float *a = p->a + row * p->a_row;
    for (int64_t col = 0; col < p->cols; col++) {
        float sum = p->start ? p->start[col] : 0;
        for (int64_t k = 0; k < p->depth; k++) sum = fused1(a[k * p->a_depth], p->b[k * p->cols + col], sum);
        p->c[row * p->cols + col] = sum;
    }
}

/* Columns that fill no vector: the last whole vector is computed once more from further left, with the same result. */
INLINE void rows_of(const Product *p, int rows, int64_t row) {
    int64_t col = 0;
    for (; col + 2 * LANES <= p->cols; col += 2 * LANES) tile(p, rows, 2, row, col);
    if (col == p->cols) return;
    if (p->cols >= LANES) {
        if (col + LANES <= p->cols) tile(p, rows, 1, row, col);
        if (p->cols % LANES) tile(p, rows, 1, row, p->cols - LANES);
        return;
    }
    for (int r = 0; r < rows; r++) narrow_row(p, row + r);
}

INLINE void block(const Product *p, int64_t rows, int64_t row) {
    switch (rows) {
        case 6: rows_of(p, 6, row); break;
        case 5: rows_of(p, 5, row); break;
        case 4: rows_of(p, 4, row); break;
        case 3: rows_of(p, 3, row); break;
        case 2: rows_of(p, 2, row); break;
        default: rows_of(p, 1, row);
    }
}

INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* a [rows, depth] as it lies in memory. */
static void product_block(Product p, int64_t rows, int64_t row) {
    p.a_depth = 1;
    block(&p, rows, row);
}

static void product(const float *a, const float *b, const float *start, float *c, int64_t rows, int64_t depth,
                    int64_t cols) {
    const Product p = {rows, cols, depth, a, depth, 1, b, c, start};
    for (int64_t row = 0; row < rows; row += ROWS) product_block(p, least(ROWS, rows - row), row);
}

/* The transpose of a [depth, rows] times b [depth, cols]. */
static void product_of_transposed(const float *a, const float *b, float *c, int64_t rows, int64_t depth, int64_t cols) {
    Product p = {rows, cols, depth, a, 1, rows, b, c, NULL};
    p.a_row = 1;
    for (int64_t row = 0; row < rows; row += ROWS) block(&p, least(ROWS, rows - row), row);
}

static void transpose(const float *restrict from, float *restrict to, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * rows + i] = from[i * cols + j];
}

enum { LINEAR, TANH, RELU };

/* x P(x^2) / Q(x^2), fitted to a relative error of 2.1e-8 on [-9, 9]; with float32's rounding it is within 3e-7 of tanh,
   and never beyond 1. */
INLINE vec tanh_of(vec x) {
    const vec most = broadcast(8.0f);
    x = either(x > most, most, x);
    x = either(x < -most, -most, x);
    const vec t = x * x;
    vec p = fused(broadcast(1.3354589e-08f), t, broadcast(2.0609034e-05f));
    vec q = fused(broadcast(7.776529e-07f), t, broadcast(0.000328563f));
    p = fused(p, t, broadcast(0.0034955854f));
    q = fused(q, t, broadcast(0.025876973f));
    p = fused(p, t, broadcast(0.13381024f));
    q = fused(q, t, broadcast(0.4671434f));
    p = fused(p, t, broadcast(1.0f));
    q = fused(q, t, broadcast(1.0f));
    return x * p / q;
}

INLINE vec activated(vec z, int64_t activation) {
    if (activation == TANH) return tanh_of(z);
    if (activation == RELU) return either(z < (vec){0}, (vec){0}, z);
    return z;
}

INLINE vec slope(vec h, int64_t activation) {
    const vec one = broadcast(1.0f);
    if (activation == TANH) return fused(-h, h, one);
    if (activation == RELU) return either(h > (vec){0}, one, (vec){0});
    return one;
}

INLINE vec load_some(const float *from, int64_t count) {
    vec v = {0};
    for (int64_t i = 0; i < LANES && i < count; i++) v[i] = from[i];
    return v;
}

INLINE void store_some(float *to, vec v, int64_t count) {
    for (int64_t i = 0; i < LANES && i < count; i++) to[i] = v[i];
}

INLINE void activate(float *z, int64_t count, int64_t activation) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(z + i, activated(load(z + i), activation));
    if (i < count) store_some(z + i, activated(load_some(z + i, count - i), activation), count - i);
}

/* d [rows, width] times the slopes at h, in place, and the sums of its columns. */
INLINE void back_through(float *d, const float *h, float *sums, int64_t rows, int64_t width, int64_t activation) {
    int64_t col = 0;
    for (; col + 2 * LANES <= width; col += 2 * LANES) {
        vec sum0 = {0}, sum1 = {0};
        for (int64_t i = col; i < rows * width; i += width) {
            const vec d0 = load(d + i) * slope(load(h + i), activation);
            const vec d1 = load(d + i + LANES) * slope(load(h + i + LANES), activation);
            store(d + i, d0);
            store(d + i + LANES, d1);
            sum0 += d0;
            sum1 += d1;
        }
        store(sums + col, sum0);
        store(sums + col + LANES, sum1);
    }
    for (; col < width; col += LANES) {
        const int64_t count = least(LANES, width - col);
        vec sum = {0};
        for (int64_t i = col; i < rows * width; i += width) {
            const vec some = load_some(d + i, count) * slope(load_some(h + i, count), activation);
            store_some(d + i, some, count);
            sum += some;
        }
        store_some(sums + col, sum, count);
    }
}

enum { POLICY = 1, VALUE = 2, BOTH = 3 };

typedef struct {
    int64_t features, layers, groups, activation;
    const int64_t *widths;   /* [layers] */
    int64_t computed, free;  /* outputs that the network computes, and those that are parameters themselves */
    const int64_t *computed_at, *free_at; /* where they stand in a row of outputs */
    float *room;             /* for one transposed matrix, and one of top x outputs */
} Net;

typedef struct {
    int64_t rows;
    int64_t parts;  /* POLICY, VALUE or BOTH */
    float **hidden; /* [layers] of [g, rows, width] */
    float **grads;  /* the same */
} Tape;

INLINE int64_t input_of(const Net *n, int64_t layer) { return layer ? n->widths[layer - 1] : n->features; }

static int64_t weights_at(const Net *n, int64_t layer, int64_t group) {
    int64_t at = 0;
    for (int64_t l = 0; l < layer; l++) at += n->groups * (input_of(n, l) + 1) * n->widths[l];
    return at + (layer < n->layers ? group * input_of(n, layer) * n->widths[layer] : 0);
}

static int64_t biases_at(const Net *n, int64_t layer, int64_t group) {
    return weights_at(n, layer, 0) + (n->groups * input_of(n, layer) + group) * n->widths[layer];
}

INLINE int64_t top_of(const Net *n) { return n->widths[n->layers - 1]; }
INLINE int64_t policy_at(const Net *n) { return weights_at(n, n->layers, 0); }
INLINE int64_t value_at(const Net *n) { return policy_at(n) + (top_of(n) + 1) * n->computed; }
INLINE int64_t free_at(const Net *n) { return value_at(n) + top_of(n) + 1; }

/* Which of the stacked nets a tape has, and of these the one whose top a part is. */
INLINE int64_t first_of(const Net *n, const Tape *t) { return t->parts == VALUE ? n->groups - 1 : 0; }
INLINE int64_t end_of(const Net *n, const Tape *t) { return t->parts == POLICY ? 1 : n->groups; }

static void layer_forward(const float *x, const float *weight, const float *bias, float *h, int64_t rows, int64_t depth,
                          int64_t width, int64_t activation) {
    const Product p = {rows, width, depth, x, depth, 1, weight, h, bias};
    for (int64_t row = 0; row < rows; row += ROWS) { /* activated while it is in the nearest cache */
        const int64_t count = least(ROWS, rows - row);
        product_block(p, count, row);
        float *z = h + row * width;
        if (activation == TANH)
            activate(z, count * width, TANH);
        else if (activation == RELU)
            activate(z, count * width, RELU);
    }
}

INLINE float dot(const float *a, const float *b, int64_t count) {
    vec sum0 = {0}, sum1 = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        sum0 = fused(load(a + i), load(b + i), sum0);
        sum1 = fused(load(a + i + LANES), load(b + i + LANES), sum1);
    }
    float sum = total(sum0 + sum1);
    for (; i < count; i++) sum = fused1(a[i], b[i], sum);
    return sum;
}

/* out [rows, .] at the places of `to`: dot products of each row of h with each column of weight [width, count]. */
static void head_forward(const float *h, const float *weight, const float *bias, float *out, int64_t rows, int64_t width,
                         int64_t count, int64_t out_row, const int64_t *to, float *room) {
    transpose(weight, room, width, count);
    for (int64_t row = 0; row < rows; row++, h += width)
        for (int64_t k = 0; k < count; k++)
            out[row * out_row + (to ? to[k] : k)] = dot(h, room + k * width, width) + bias[k];
}

/* Outputs [rows, K] and values [rows], as the tape's parts want them; grads may be NULL here. */
void shoal_forward(const Net *n, const float *params, const Tape *t, const float *x, float *outputs, float *values) {
    const int64_t first = first_of(n, t), rows = t->rows, top = top_of(n), all = n->computed + n->free;
    for (int64_t group = first; group < end_of(n, t); group++) {
        const float *below = x;
        for (int64_t l = 0; l < n->layers; l++) {
            float *h = t->hidden[l] + (group - first) * rows * n->widths[l];
            layer_forward(below, params + weights_at(n, l, group), params + biases_at(n, l, group), h, rows,
                          input_of(n, l), n->widths[l], n->activation);
            below = h;
        }
        if ((t->parts & POLICY) && group == 0) {
            const float *weight = params + policy_at(n);
            head_forward(below, weight, weight + top * n->computed, outputs, rows, top, n->computed, all,
                         n->computed_at, n->room);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t k = 0; k < n->free; k++) outputs[row * all + n->free_at[k]] = params[free_at(n) + k];
        }
        if ((t->parts & VALUE) && group == n->groups - 1) {
            const float *weight = params + value_at(n);
            head_forward(below, weight, weight + top, values, rows, top, 1, 1, NULL, n->room);
        }
    }
}

/* The gradient of a head's weight [top, count] and bias by d [rows, count], and of the top [rows, top]. */
static void head_backward(const Net *n, const float *h, const float *d, const float *weight, float *d_weight,
                          float *d_top, int64_t rows, int64_t count, int add) {
    const int64_t top = top_of(n);
    float *room = n->room;
    product_of_transposed(d, h, room, count, rows, top);
    transpose(room, d_weight, count, top);
    float *d_bias = d_weight + top * count;
    for (int64_t k = 0; k < count; k++) {
        double sum = 0;
        for (int64_t row = 0; row < rows; row++) sum += d[row * count + k];
        d_bias[k] = (float)sum;
    }
    if (!d_top) return;
    transpose(weight, room, top, count);
    if (!add) {
        product(d, room, NULL, d_top, rows, count, top);
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < count; k++)
            for (int64_t i = 0; i < top; i++) d_top[row * top + i] += d[row * count + k] * room[k * top + i];
}

/* The gradient [P] of sum(d_outputs outputs) + sum(d_values values); what the tape has no part of must be zero there.
   d_computed [rows, computed] is room. */
void shoal_backward(const Net *n, const float *params, float *gradient, const Tape *t, const float *x,
                    const float *d_outputs, const float *d_values, float *d_computed) {
    const int64_t first = first_of(n, t), rows = t->rows, top = top_of(n), all = n->computed + n->free;
    const int64_t last = n->layers - 1;
    float *const h_top = t->hidden[last], *const d_top = t->grads[last];
    const int64_t of_value = (n->groups - 1 - first) * rows * top; /* where the value's top begins */
    if (t->parts & POLICY) {
        for (int64_t row = 0; row < rows; row++)
            for (int64_t k = 0; k < n->computed; k++)
                d_computed[row * n->computed + k] = d_outputs[row * all + n->computed_at[k]];
        for (int64_t k = 0; k < n->free; k++) {
            double sum = 0;
            for (int64_t row = 0; row < rows; row++) sum += d_outputs[row * all + n->free_at[k]];
            gradient[free_at(n) + k] = (float)sum;
        }
        head_backward(n, h_top, d_computed, params + policy_at(n), gradient + policy_at(n), d_top, rows, n->computed, 0);
    }
    if (t->parts & VALUE) {
        const int alone = n->groups == 1 && t->parts == VALUE; /* the layers below are the policy's */
        head_backward(n, h_top + of_value, d_values, params + value_at(n), gradient + value_at(n),
                      alone ? NULL : d_top + of_value, rows, 1, n->groups == 1);
        if (alone) return;
    }
    for (int64_t group = first; group < end_of(n, t); group++)
        for (int64_t l = last; l >= 0; l--) {
            const int64_t width = n->widths[l], depth = input_of(n, l), at = (group - first) * rows;
            float *d = t->grads[l] + at * width;
            const float *h = t->hidden[l] + at * width, *below = l ? t->hidden[l - 1] + at * depth : x;
            float *sums = gradient + biases_at(n, l, group);
            if (n->activation == TANH)
                back_through(d, h, sums, rows, width, TANH);
            else if (n->activation == RELU)
                back_through(d, h, sums, rows, width, RELU);
            else
                back_through(d, h, sums, rows, width, LINEAR);
            product_of_transposed(below, d, gradient + weights_at(n, l, group), depth, rows, width);
            if (!l) continue;
            transpose(params + weights_at(n, l, group), n->room, depth, width);
            product(d, n->room, NULL, t->grads[l - 1] + at * depth, rows, width, depth);
        }
}

/* Whether a row of the gradient by the outputs has anything in it that the network computes. */
INLINE int is_asked(const Net *n, const float *d_outputs) {
    for (int64_t k = 0; k < n->computed; k++)
        if (d_outputs[n->computed_at[k]] != 0) return 1;
    return 0;
}

/* The gradient [rows, features] of sum(d_outputs outputs) by the inputs, of a tape of the policy. Rows that nobody asks
   about, those of zeros, are gone around: the others lie one after another in d_computed and in the tape's grads. */
void shoal_backward_inputs(const Net *n, const float *params, const Tape *t, const float *d_outputs, float *d_computed,
                           float *d_inputs) {
    const int64_t top = top_of(n), all = n->computed + n->free, features = n->features;
    int64_t used = 0;
    for (int64_t row = 0; row < t->rows; row++) {
        const float *from = d_outputs + row * all;
        if (!is_asked(n, from)) continue;
        for (int64_t k = 0; k < n->computed; k++) d_computed[used * n->computed + k] = from[n->computed_at[k]];
        used++;
    }
    transpose(params + policy_at(n), n->room, top, n->computed);
    product(d_computed, n->room, NULL, t->grads[n->layers - 1], used, n->computed, top);
    for (int64_t l = n->layers - 1; l >= 0; l--) {
        const int64_t width = n->widths[l], depth = input_of(n, l);
        const float *weight = params + weights_at(n, l, 0);
        float *d = t->grads[l], *below = l ? t->grads[l - 1] : d_inputs;
        for (int64_t row = 0, at = 0; row < t->rows; row++) {
            if (!is_asked(n, d_outputs + row * all)) continue;
            const float *h = t->hidden[l] + row * width;
            int64_t i = 0;
            for (; i + LANES <= width; i += LANES)
                store(d + at + i, load(d + at + i) * slope(load(h + i), n->activation));
            if (i < width) {
                const vec some = load_some(d + at + i, width - i) * slope(load_some(h + i, width - i), n->activation);
                store_some(d + at + i, some, width - i);
            }
            at += width;
        }
        if (l || features >= LANES) {
            transpose(weight, n->room, depth, width);
            product(d, n->room, NULL, below, used, width, depth);
        } else { /* too few columns for a vector */
            for (int64_t row = 0; row < used; row++)
                for (int64_t k = 0; k < features; k++)
                    below[row * features + k] = dot(d + row * width, weight + k * width, width);
        }
    }
    for (int64_t row = t->rows - 1; row >= 0; row--) { /* each to its own row, from behind */
        const int asked = is_asked(n, d_outputs + row * all);
        used -= asked;
        for (int64_t k = 0; k < features; k++) d_inputs[row * features + k] = asked ? d_inputs[used * features + k] : 0;
    }
}

enum { GAUSSIAN, CATEGORICAL };

/* PPO's (algorithms/ppo.py), over distributions of models/distributions.py. */
typedef struct {
    int64_t kind, count, choices; /* `count` numbers, or so many choices among `choices` each */
    float clip_param, entropy_coeff, vf_loss_coeff, vf_clip_param, size; /* size: 1 / rows over all learners */
    int64_t use_critic;
} Objective;

#define HALF_LOG_2PI 0.91893853320467274178f
#define LOWEST_LOG_STD -20.0f
#define HIGHEST_LOG_STD 2.0f

/* Log-probability of one row's action; its entropy, and what `gaussian_gradient` needs. */
INLINE float gaussian(const float *in, const float *before, const float *action, int64_t count, float *entropy, float *z,
                      float *inverse) {
    float log_prob = 0, spread = 0;
    for (int64_t k = 0; k < count; k++) {
        float log_std = in[count + k];
        const int is_new = !before || log_std != before[count + k]; /* mostly all rows have the same */
        log_std = log_std < LOWEST_LOG_STD ? LOWEST_LOG_STD : log_std;
        log_std = log_std > HIGHEST_LOG_STD ? HIGHEST_LOG_STD : log_std;
        if (is_new) inverse[k] = expf(-log_std);
        z[k] = (action[k] - in[k]) * inverse[k];
        log_prob -= 0.5f * z[k] * z[k] + log_std;
        spread += log_std;
    }
    *entropy = spread + count * (HALF_LOG_2PI + 0.5f);
    return log_prob - count * HALF_LOG_2PI;
}

INLINE void gaussian_gradient(const float *in, const float *z, const float *inverse, int64_t count, float d_log_prob,
                              float d_entropy, float *d) {
    for (int64_t k = 0; k < count; k++) {
        const float raw = in[count + k];
        d[k] = d_log_prob * (z[k] * inverse[k]);
        d[count + k] = d_log_prob * (z[k] * z[k] - 1) + d_entropy;
        d[count + k] *= raw > LOWEST_LOG_STD && raw < HIGHEST_LOG_STD;
    }
}

/* The same for choices; p and logp [count, choices], entropies [count]. */
INLINE float categorical(const float *in, const int64_t *action, int64_t count, int64_t choices, float *entropy,
                         float *logp, float *p, float *entropies) {
    float log_prob = 0;
    *entropy = 0;
    for (int64_t c = 0; c < count; c++, in += choices, logp += choices, p += choices) {
        float highest = in[0], sum = 0;
        for (int64_t k = 1; k < choices; k++) highest = in[k] > highest ? in[k] : highest;
        for (int64_t k = 0; k < choices; k++) {
            logp[k] = in[k] - highest;
            p[k] = expf(logp[k]);
            sum += p[k];
        }
        const float log_sum = logf(sum);
        float own = 0;
        for (int64_t k = 0; k < choices; k++) {
            p[k] /= sum;
            logp[k] -= log_sum;
            own -= p[k] * logp[k];
        }
        entropies[c] = own;
        *entropy += own;
        log_prob += logp[action[c]];
    }
    return log_prob;
}

INLINE void categorical_gradient(const int64_t *action, const float *logp, const float *p, const float *entropies,
                                 int64_t count, int64_t choices, float d_log_prob, float d_entropy, float *d) {
    for (int64_t c = 0; c < count; c++, logp += choices, p += choices, d += choices) {
        for (int64_t k = 0; k < choices; k++) {
            d[k] = -p[k] * d_log_prob;
            if (d_entropy != 0) d[k] -= d_entropy * (p[k] * (logp[k] + entropies[c]));
        }
        d[action[c]] += d_log_prob;
    }
}

/* The loss's gradient by outputs [rows, K] and values [rows]. `sums` gets what each statistic of the rows adds up to:
   the surrogate, squared value errors, entropies, the estimate of the KL, and the number of clipped rows.
   `room` is for three numbers of each output. Returns the first row whose action is none of the choices, or -1. */
int64_t shoal_ppo_gradient(const Objective *o, int64_t rows, const float *outputs, const float *values,
                           const void *actions, const float *log_probs, const float *advantages, const float *targets,
                           float *d_outputs, float *d_values, float *room, double *sums) {
    const int64_t outs = o->kind == GAUSSIAN ? 2 * o->count : o->count * o->choices;
    const float d_entropy = -o->entropy_coeff * o->size;
    for (int i = 0; i < 5; i++) sums[i] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const float *in = outputs + row * outs, *action = (const float *)actions + row * o->count;
        const int64_t *choice = (const int64_t *)actions + row * o->count;
        float *a = room, *b = room + outs, *c = room + 2 * outs, *d = d_outputs + row * outs;
        float entropy, log_prob;
        if (o->kind == GAUSSIAN) {
            log_prob = gaussian(in, row ? in - outs : NULL, action, o->count, &entropy, a, b);
        } else {
            for (int64_t k = 0; k < o->count; k++)
                if (choice[k] < 0 || choice[k] >= o->choices) return row;
            log_prob = categorical(in, choice, o->count, o->choices, &entropy, a, b, c);
        }
        const float log_ratio = log_prob - log_probs[row], advantage = advantages[row];
        const float ratio = expf(log_ratio > 20 ? 20 : log_ratio); /* finite, however far the policy went */
        float held = ratio < 1 - o->clip_param ? 1 - o->clip_param : ratio;
        held = held > 1 + o->clip_param ? 1 + o->clip_param : held;
        const float surrogate = ratio * advantage, clipped = held * advantage;
        const float d_log_prob = surrogate * (surrogate <= clipped) * -o->size;
        if (o->kind == GAUSSIAN)
            gaussian_gradient(in, a, b, o->count, d_log_prob, d_entropy, d);
        else
            categorical_gradient(choice, a, b, c, o->count, o->choices, d_log_prob, d_entropy, d);
        const float error = o->use_critic ? values[row] - targets[row] : 0;
        d_values[row] = error * (2 * o->vf_loss_coeff * o->size);
        if (!isinf(o->vf_clip_param)) d_values[row] *= error * error <= o->vf_clip_param;
        sums[0] += surrogate < clipped ? surrogate : clipped;
        sums[1] += (double)error * error;
        sums[2] += entropy;
        sums[3] += ratio - 1 - log_ratio;
        sums[4] += surrogate > clipped;
    }
    return -1;
}

/* Adam's (algorithms/optimizer.py). */
typedef struct {
    double beta1, beta2, eps, grad_clip; /* grad_clip: inf for none */
    double v_scale, rate;                /* 1 / sqrt(1 - beta2^t), and lr / (1 - beta1^t) */
} AdamStep;

static double shortened(double norm, double longest) { return norm > longest ? longest / (norm + 1e-6) : 1; }

/* Steps params [count] along a gradient that is clipped, where `of_values` [count] is 1 by itself; without `of_values`,
   as a whole. Returns the norm of all of it before; where that is not finite, nothing has changed. */
double shoal_adam(const AdamStep *s, int64_t count, float *restrict params, const float *restrict gradient,
                  float *restrict m, float *restrict v, const float *restrict of_values) {
    vec rest4[4] = {{0}}, own4[4] = {{0}};
    double rest = 0, own = 0; /* squares of the policy's part, and of the values' */
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            const vec g = load(gradient + i + j * LANES), square = g * g;
            const vec share = of_values ? load(of_values + i + j * LANES) : (vec){0};
            rest4[j] += square * (1.0f - share);
            own4[j] += square * share;
        }
    for (int j = 0; j < 4; j++) {
        rest += total(rest4[j]);
        own += total(own4[j]);
    }
    for (; i < count; i++) {
        const double square = (double)gradient[i] * gradient[i], share = of_values ? of_values[i] : 0;
        rest += square * (1 - share);
        own += square * share;
    }
    const double norm = sqrt(rest + own);
    if (!isfinite(norm)) return norm;
    double scale = 1, scale_of_values = 1;
    if (norm > s->grad_clip) {
        scale = shortened(sqrt(rest), s->grad_clip);
        scale_of_values = shortened(sqrt(own), s->grad_clip);
    }
    const float scale_of = (float)scale, scale_of_own = (float)scale_of_values;
    const float beta1 = (float)s->beta1, rest1 = (float)(1 - s->beta1);
    const float beta2 = (float)s->beta2, rest2 = (float)(1 - s->beta2);
    const float v_scale = (float)s->v_scale, eps = (float)s->eps, rate = (float)s->rate;
    for (i = 0; i < count; i++) {
        const float g = gradient[i] * (of_values && of_values[i] ? scale_of_own : scale_of);
        m[i] = m[i] * beta1 + g * rest1;
        v[i] = v[i] * beta2 + g * g * rest2;
        params[i] -= m[i] / (sqrtf(v[i]) * v_scale + eps) * rate;
    }
    return norm;
}
