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

#define INLINE static inline __attribute__((always_inline))

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

static Pass *best_pass(void) {
#ifdef HAS_AVX2
    if (__builtin_cpu_supports("avx2")) return avx2_pass;
#endif
    return plain_pass;
}

typedef uint8_t Row __attribute__((vector_size(BLOCK)));

/* Two halves of rows in turn, byte by byte or by four bytes; they begin at byte n. */
#define BYTES(n) n, n + 16, n + 1, n + 17, n + 2, n + 18, n + 3, n + 19, \
                 n + 4, n + 20, n + 5, n + 21, n + 6, n + 22, n + 7, n + 23
#define FOURS(n) n, n + 1, n + 2, n + 3, n + 16, n + 17, n + 18, n + 19, \
                 n + 4, n + 5, n + 6, n + 7, n + 20, n + 21, n + 22, n + 23
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Row){__VA_ARGS__})
#endif

/* Transposes 16 x 16 pixels of one byte, or 4 x 4 of four: rows i and i + side / 2 become rows 2 i
   and 2 i + 1, until each pixel has moved around once. */
INLINE void transpose_block(const uint8_t *in, size_t in_step, uint8_t *out, size_t out_step,
                            const int unit) {
    const int side = BLOCK / unit;
    Row rows[BLOCK], next[BLOCK];
    for (int i = 0; i < side; i++) memcpy(&rows[i], in + i * in_step, BLOCK);
    for (int round = 0; round < (unit == 1 ? 4 : 2); round++) {
        for (int i = 0; i < side / 2; i++) {
            Row a = rows[i], b = rows[i + side / 2];
            next[2 * i] = unit == 1 ? SHUFFLE(a, b, BYTES(0)) : SHUFFLE(a, b, FOURS(0));
            next[2 * i + 1] = unit == 1 ? SHUFFLE(a, b, BYTES(8)) : SHUFFLE(a, b, FOURS(8));
        }
        memcpy(rows, next, sizeof rows);
    }
    for (int i = 0; i < side; i++) memcpy(out + i * out_step, &rows[i], BLOCK);
}

INLINE void transpose_units(const uint8_t *in, size_t in_step, Py_ssize_t width, Py_ssize_t height,
                            uint8_t *out, size_t out_step, const int unit) {
    const int side = BLOCK / unit;
    Py_ssize_t x_end = width / side * side, y_end = height / side * side;
    for (Py_ssize_t y = 0; y < y_end; y += side)
        for (Py_ssize_t x = 0; x < x_end; x += side)
            transpose_block(in + y * in_step + x * unit, in_step, out + x * out_step + y * unit,
                            out_step, unit);
    for (Py_ssize_t y = 0; y < height; y++)
        for (Py_ssize_t x = y < y_end ? x_end : 0; x < width; x++)
            memcpy(out + x * out_step + y * unit, in + y * in_step + x * unit, unit);
}

static void transpose(const uint8_t *in, size_t in_step, Py_ssize_t width, Py_ssize_t height,
                      uint8_t *out, size_t out_step, Py_ssize_t unit) {
    if (unit == 1) transpose_units(in, in_step, width, height, out, out_step, 1);
    else transpose_units(in, in_step, width, height, out, out_step, 4);
}

/* A picture of `unit` bytes a pixel: one of grey, or red, green, blue and one that is not used. */
typedef struct {
    const uint8_t *pixels;
    Py_ssize_t width, height, unit;
    Weights columns, rows;
    uint8_t *scratch; /* of `scratch_size` bytes: see `resize_picture` */
} Task;

static size_t padded(size_t size) { return (size + LANES - 1) / LANES * LANES; }

static size_t scratch_size(const Task *task) {
    size_t row_size = padded(task->columns.num_rows * task->unit);
    return LANES * (task->width + task->columns.num_rows) +
           row_size * (padded(task->height) + task->rows.num_rows);
}

static void resize_picture(const Task *task, uint8_t *out, size_t out_step) {
    Pass *pass = best_pass();
    Py_ssize_t unit = task->unit, new_width = task->columns.num_rows, strip_height = LANES / unit;
    size_t in_step = task->width * unit, row_size = padded(new_width * unit);
    uint8_t *strip = task->scratch, *narrow = strip + LANES * task->width;
    uint8_t *wide = narrow + LANES * new_width, *done = wide + row_size * padded(task->height);
    for (Py_ssize_t y = 0; y < task->height; y += strip_height) {
        Py_ssize_t height = task->height - y < strip_height ? task->height - y : strip_height;
        transpose(task->pixels + y * in_step, in_step, task->width, height, strip, LANES, unit);
        pass(strip, LANES, task->columns, narrow, LANES);
        transpose(narrow, LANES, strip_height, new_width, wide + y * row_size, row_size, unit);
    }
    for (size_t x = 0; x < row_size; x += LANES)
        pass(wide + x, row_size, task->rows, done + x, row_size);
    for (Py_ssize_t y = 0; y < task->rows.num_rows; y++, done += row_size, out += out_step)
        if (unit == 1) memcpy(out, done, new_width);
        else for (Py_ssize_t x = 0; x < new_width; x++) memcpy(out + 3 * x, done + 4 * x, 3);
}

/* Reads a table of weights; returns 0 if one of its rows leaves the old pixels. */
static int read_weights(Weights *weights, const Py_buffer *table, Py_ssize_t num_rows,
                        Py_ssize_t old_size) {
    Py_ssize_t numbers = table->len / (Py_ssize_t)sizeof(int32_t);
    if (num_rows < 1 || numbers % num_rows || numbers / num_rows < 3) return 0;
    *weights = (Weights){table->buf, numbers / num_rows, num_rows};
    for (const int32_t *row = weights->row; num_rows--; row += weights->step)
        if (row[0] < 0 || row[1] < 1 || row[1] > weights->step - 2 || row[0] > old_size - row[1])
            return 0;
    return 1;
}

static PyObject *resize(PyObject *module, PyObject *args) {
    Py_buffer pixels, columns, rows, scratch;
    Py_ssize_t new_width, new_height, left, top, canvas_width, canvas_height;
    const Py_ssize_t most = 1 << 24; /* so that no product of two sides overflows */
    PyObject *result = NULL;
    Task task;
    if (!PyArg_ParseTuple(args, "y*nnny*y*(nn)(nn)(nn)w*", &pixels, &task.width, &task.height,
                          &task.unit, &columns, &rows, &new_width, &new_height, &left, &top,
                          &canvas_width, &canvas_height, &scratch))
        return NULL;
    task.pixels = pixels.buf, task.scratch = scratch.buf;
    if (task.width < 1 || task.width > most || task.height < 1 || task.height > most ||
        (task.unit != 1 && task.unit != 4) ||
        pixels.len != task.width * task.height * task.unit ||
        !read_weights(&task.columns, &columns, new_width, task.width) ||
        !read_weights(&task.rows, &rows, new_height, task.height) ||
        canvas_width > most || canvas_height > most || left < 0 || top < 0 ||
        left > canvas_width - new_width || top > canvas_height - new_height)
        PyErr_SetString(PyExc_ValueError, "the sizes, the pixels and the weights do not fit");
    else if ((size_t)scratch.len < scratch_size(&task))
        PyErr_SetString(PyExc_ValueError, "the scratch memory is too small");
    else {
        Py_ssize_t samples = task.unit == 1 ? 1 : 3, out_step = canvas_width * samples;
        result = PyBytes_FromStringAndSize(NULL, canvas_height * out_step);
        uint8_t *out = result ? (uint8_t *)PyBytes_AsString(result) : NULL;
        Py_BEGIN_ALLOW_THREADS
        if (out && (new_width < canvas_width || new_height < canvas_height))
            memset(out, 0, canvas_height * out_step);
        if (out) resize_picture(&task, out + top * out_step + left * samples, out_step);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&pixels), PyBuffer_Release(&columns);
    PyBuffer_Release(&rows), PyBuffer_Release(&scratch);
    return result;
}

static PyMethodDef methods[] = {{"resize", resize, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_resize", .m_methods = methods,
                                 .m_slots = slots};

PyMODINIT_FUNC PyInit__resize(void) { return PyModuleDef_Init(&definition); }
