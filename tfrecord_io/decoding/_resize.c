/* Resizes pictures of 8 bits a sample: two passes of weighted sums, as in Pillow's Resample.c.

   The sums are of whole numbers, so their order changes no byte. Both passes run along 64 bytes of
   contiguous memory; for the first one, strips of the picture are transposed. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && !defined(PLAIN)
#define HAS_AVX2
#include <immintrin.h>
#endif

enum { LANES = 64, WEIGHT_BITS = 22, HALF = 1 << (WEIGHT_BITS - 1), BLOCK = 16 };

/* The weights of one side: for each new pixel a row with the first old one, the number of old ones,
   and their weights. */
typedef struct {
    const int32_t *row;
    Py_ssize_t step, num_rows;
} Weights;

/* Writes weighted sums of rows of 64 bytes, which lie `in_step` bytes apart. */
typedef void Pass(const uint8_t *in, size_t in_step, Weights weights, uint8_t *out,
                  size_t out_step);

static void plain_pass(const uint8_t *in, size_t in_step, Weights weights, uint8_t *out,
                       size_t out_step) {
    for (; weights.num_rows--; weights.row += weights.step, out += out_step) {
        int32_t sums[LANES];
        for (int i = 0; i < LANES; i++) sums[i] = HALF;
        for (int k = 0; k < weights.row[1]; k++) {
            const uint8_t *row = in + (weights.row[0] + k) * in_step;
            for (int i = 0; i < LANES; i++) sums[i] += row[i] * weights.row[2 + k];
        }
        for (int i = 0; i < LANES; i++) {
            int32_t sum = sums[i] >> WEIGHT_BITS;
            out[i] = sum > 255 ? 255 : sum; /* rounded weights may add up to more than one */
        }
    }
}

#ifdef HAS_AVX2
__attribute__((target("avx2")))
static void avx2_pass(const uint8_t *in, size_t in_step, Weights weights, uint8_t *out,
                      size_t out_step) {
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (; weights.num_rows--; weights.row += weights.step, out += out_step) {
        __m256i sums[LANES / 8];
        for (int i = 0; i < LANES / 8; i++) sums[i] = _mm256_set1_epi32(HALF);
        const uint8_t *row = in + weights.row[0] * in_step;
        const int32_t *end = weights.row + 2 + weights.row[1], *next = weights.row + 2;
        do {
            __m256i weight = _mm256_set1_epi32(*next);
            for (int i = 0; i < LANES / 8; i++) {
                __m128i bytes = _mm_loadl_epi64((const __m128i *)(row + 8 * i));
                __m256i product = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), weight);
                sums[i] = _mm256_add_epi32(sums[i], product);
            }
            row += in_step;
        } while (++next < end);
        for (int i = 0; i < LANES / 8; i++) sums[i] = _mm256_srai_epi32(sums[i], WEIGHT_BITS);
        for (int i = 0; i < LANES / 8; i += 4) {
            __m256i first = _mm256_packs_epi32(sums[i], sums[i + 1]);
            __m256i second = _mm256_packs_epi32(sums[i + 2], sums[i + 3]);
            __m256i bytes = _mm256_packus_epi16(first, second); /* clipped; not in order */
            bytes = _mm256_permutevar8x32_epi32(bytes, in_order);
            _mm256_storeu_si256((__m256i *)(out + 8 * i), bytes);
        }
    }
}
#endif

typedef uint8_t Row __attribute__((vector_size(BLOCK)));

/* Two halves of rows in turn, byte by byte; they begin at byte n. */
#define IN_TURN(n) n, n + 16, n + 1, n + 17, n + 2, n + 18, n + 3, n + 19, \
                   n + 4, n + 20, n + 5, n + 21, n + 6, n + 22, n + 7, n + 23
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Row){__VA_ARGS__})
#endif

/* Transposes 16 x 16 bytes: rows i and i + 8 become rows 2 i and 2 i + 1, until each byte has moved
   around once. */
static void transpose_block(const uint8_t *in, size_t in_step, uint8_t *out, size_t out_step) {
    Row rows[BLOCK], next[BLOCK];
    for (int i = 0; i < BLOCK; i++) memcpy(&rows[i], in + i * in_step, BLOCK);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < BLOCK / 2; i++) {
            Row a = rows[i], b = rows[i + BLOCK / 2];
            next[2 * i] = SHUFFLE(a, b, IN_TURN(0));
            next[2 * i + 1] = SHUFFLE(a, b, IN_TURN(8));
        }
        memcpy(rows, next, sizeof rows);
    }
    for (int i = 0; i < BLOCK; i++) memcpy(out + i * out_step, &rows[i], BLOCK);
}

static void transpose(const uint8_t *in, size_t in_step, Py_ssize_t width, Py_ssize_t height,
                      uint8_t *out, size_t out_step) {
    Py_ssize_t x_end = width / BLOCK * BLOCK, y_end = height / BLOCK * BLOCK;
    for (Py_ssize_t y = 0; y < y_end; y += BLOCK)
        for (Py_ssize_t x = 0; x < x_end; x += BLOCK)
            transpose_block(in + y * in_step + x, in_step, out + x * out_step + y, out_step);
    for (Py_ssize_t y = 0; y < height; y++)
        for (Py_ssize_t x = y < y_end ? x_end : 0; x < width; x++)
            out[x * out_step + y] = in[y * in_step + x];
}

/* A side or a distance in bytes is at most 2^28, so that no product of two of them overflows. */
static int is_size(Py_ssize_t size) { return size > 0 && size <= 1 << 28; }

/* Reads a table for a number of new pixels; returns whether it names no old one that is not there,
   and no sum of its weights, which are at most 1.5 of 2^22, can overflow. */
static int read_weights(const Py_buffer *table, Py_ssize_t num_rows, Py_ssize_t num_old,
                        Weights *weights) {
    Py_ssize_t row_bytes = table->len / num_rows;
    *weights = (Weights){table->buf, row_bytes / (Py_ssize_t)sizeof(int32_t), num_rows};
    if (weights->step < 3 || table->len != num_rows * weights->step * (Py_ssize_t)sizeof(int32_t))
        return 0;
    const int32_t *row = weights->row;
    for (Py_ssize_t i = 0; i < num_rows; i++, row += weights->step) {
        int64_t sum = 0;
        if (row[0] < 0 || row[1] < 1 || row[1] > weights->step - 2) return 0;
        if ((int64_t)row[0] + row[1] > num_old) return 0;
        for (int k = 0; k < row[1]; sum += row[2 + k++])
            if (row[2 + k] < 0) return 0;
        if (sum > 3 * HALF) return 0;
    }
    return 1;
}

/* Takes the pixels and the old width, with `unit` bytes a pixel: one of grey, or red, green, blue
   and one that is not used; the tables of weights of columns and rows, and how many new ones there
   are; memory, see `_by_kernel`; and where the new picture begins in what memory, with how many
   bytes from one row to the next. Raises a ValueError if these do not fit together. */
static PyObject *resize(PyObject *module, PyObject *args) {
    Py_buffer pixels, of_columns, of_rows, scratch, canvas;
    Py_ssize_t width, unit, new_width, new_height, start, out_step;
    if (!PyArg_ParseTuple(args, "y*nny*y*nnw*w*nn", &pixels, &width, &unit, &of_columns, &of_rows,
                          &new_width, &new_height, &scratch, &canvas, &start, &out_step))
        return NULL;
    const char *wrong = NULL;
    Weights columns, rows;
    Py_BEGIN_ALLOW_THREADS
    Pass *pass = plain_pass;
#ifdef HAS_AVX2
    if (__builtin_cpu_supports("avx2")) pass = avx2_pass;
#endif
    Py_ssize_t samples = unit == 1 ? 1 : 3, in_step = 0, new_step = 0, height = 0, step = 0;
    if ((unit != 1 && unit != 4) || !is_size(width) || !is_size(new_width) || !is_size(new_height)
        || !is_size(out_step)) {
        wrong = "a size is not positive, or too large";
    } else {
        in_step = width * unit, new_step = new_width * unit, height = pixels.len / in_step;
        step = (new_step + LANES - 1) / LANES * LANES;
        if (!is_size(height) || pixels.len != height * in_step)
            wrong = "the pixels are no whole rows";
        else if (!read_weights(&of_columns, new_width, width, &columns)
                 || !read_weights(&of_rows, new_height, height, &rows))
            wrong = "the weights are not those of these sizes";
        else if (scratch.len < LANES * (in_step + new_step)
                               + step * (height + LANES - 1 + new_height))
            wrong = "the memory is too small";
        else if (start < 0 || start > canvas.len || out_step < samples * new_width
                 || (new_height - 1) * out_step + samples * new_width > canvas.len - start)
            wrong = "the new picture does not fit where it begins";
    }
    if (!wrong) {
        uint8_t *strip = scratch.buf, *narrow = strip + LANES * in_step;
        uint8_t *wide = narrow + LANES * new_step, *done = wide + step * (height + LANES - 1);
        for (Py_ssize_t y = 0; y < height; y += LANES) {
            Py_ssize_t num_rows = height - y < LANES ? height - y : LANES;
            uint8_t *in = (uint8_t *)pixels.buf + y * in_step;
            transpose(in, in_step, in_step, num_rows, strip, LANES);
            for (Py_ssize_t i = 0; i < samples; i++)
                pass(strip + i * LANES, unit * LANES, columns, narrow + i * LANES, unit * LANES);
            transpose(narrow, LANES, LANES, new_step, wide + y * step, step);
        }
        for (Py_ssize_t x = 0; x < new_step; x += LANES) pass(wide + x, step, rows, done + x, step);
        uint8_t *out = (uint8_t *)canvas.buf + start;
        for (Py_ssize_t y = 0; y < new_height; y++, done += step, out += out_step)
            if (unit == 1) memcpy(out, done, new_width);
            else for (Py_ssize_t x = 0; x < new_width; x++) memcpy(out + 3 * x, done + 4 * x, 3);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels), PyBuffer_Release(&of_columns), PyBuffer_Release(&of_rows);
    PyBuffer_Release(&scratch), PyBuffer_Release(&canvas);
    if (wrong) return PyErr_SetString(PyExc_ValueError, wrong), NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"resize", resize, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_resize", .m_methods = methods,
                                 .m_slots = slots};

PyMODINIT_FUNC PyInit__resize(void) { return PyModuleDef_Init(&definition); }
