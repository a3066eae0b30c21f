/* Copying pages of CPU memory, a share of them a call, without the interpreter lock.

   A row is one slot of one layer. Rows that lie side by side in both pools are copied as one. Where they do not, they are
   taken in the order of the memory that is read, which lets the processor fetch ahead; writes go past its caches where it
   can do that, so their order costs little, and what would be overwritten is not read first. Cost: O(bytes).

   Rejected: views for torch to copy. Making them takes a third as long as copying them, and holds the interpreter lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef struct {
    int64_t into, out_of; /* addresses of page 0 */
    int64_t layers, slots, row_bytes;
    int64_t into_layer, into_page, into_slot; /* strides in bytes */
    int64_t out_of_layer, out_of_page, out_of_slot;
} Part;

/* `next`: what is read soon after, as the processor does not foresee jumps from a few kilobytes to the next. */
static void copy_bytes(char *into, const char *out_of, const char *next, int64_t count)
{
#if defined(__SSE2__)
    if ((((uintptr_t)into | (uintptr_t)count) & 15) == 0) {
        __m128i *written = (__m128i *)into;
        const __m128i *read = (const __m128i *)out_of, *end = read + count / 16;
        for (; end - read >= 4; read += 4, written += 4, next += 64) {
            _mm_prefetch(next, _MM_HINT_NTA);
            __m128i first = _mm_loadu_si128(read), second = _mm_loadu_si128(read + 1);
            __m128i third = _mm_loadu_si128(read + 2), fourth = _mm_loadu_si128(read + 3);
            _mm_stream_si128(written, first);
            _mm_stream_si128(written + 1, second);
            _mm_stream_si128(written + 2, third);
            _mm_stream_si128(written + 3, fourth);
        }
        for (; read < end; read++, written++)
            _mm_stream_si128(written, _mm_loadu_si128(read));
        return;
    }
#endif
    (void)next;
    memcpy(into, out_of, (size_t)count);
}

static void copy_layers(const Part *part, int64_t target, int64_t source, int64_t first_layer, int64_t end_layer)
{
    char *into = (char *)(uintptr_t)part->into + target * part->into_page;
    const char *out_of = (const char *)(uintptr_t)part->out_of + source * part->out_of_page;
    int64_t slots = part->slots, row_bytes = part->row_bytes;
    if (slots == 1 || (part->into_slot == row_bytes && part->out_of_slot == row_bytes)) {
        row_bytes *= slots;
        slots = 1;
    }
    int64_t layers = end_layer - first_layer, slot_outside = part->out_of_slot > part->out_of_layer;
    int64_t outside = slot_outside ? slots : layers, inside = slot_outside ? layers : slots;
    for (int64_t i = 0; i < outside; i++)
        for (int64_t j = 0; j < inside; j++) {
            int64_t layer = first_layer + (slot_outside ? j : i), slot = slot_outside ? i : j;
            const char *read = out_of + layer * part->out_of_layer + slot * part->out_of_slot;
            copy_bytes(into + layer * part->into_layer + slot * part->into_slot, read, read + part->out_of_slot, row_bytes);
        }
}

static void copy_share(const Part *part, const int64_t *targets, const int64_t *sources, int64_t pages, int64_t share, int64_t shares)
{
    int64_t blocks = pages * part->layers; /* of all slots of one layer of one page */
    int64_t end = blocks / shares * (share + 1) + blocks % shares * (share + 1) / shares;
    int64_t block = blocks / shares * share + blocks % shares * share / shares;
    while (block < end) {
        int64_t page = block / part->layers, first_layer = block % part->layers;
        int64_t end_layer = first_layer + (end - block);
        if (end_layer > part->layers)
            end_layer = part->layers;
        copy_layers(part, targets[page], sources[page], first_layer, end_layer);
        block += end_layer - first_layer;
    }
}

static PyObject *copy_rows(PyObject *module, PyObject *arguments)
{
    Py_buffer parts, targets, sources;
    Py_ssize_t share, shares;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*nn", &parts, &targets, &sources, &share, &shares))
        return NULL;
    int right = parts.len % (Py_ssize_t)sizeof(Part) == 0 && targets.len == sources.len && targets.len % 8 == 0 && 0 <= share && share < shares;
    for (Py_ssize_t i = 0; right && i < parts.len / (Py_ssize_t)sizeof(Part); i++) {
        const Part *part = (const Part *)parts.buf + i;
        right = part->layers > 0 && part->slots > 0 && part->row_bytes > 0;
    }
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < parts.len / (Py_ssize_t)sizeof(Part); i++)
            copy_share((const Part *)parts.buf + i, targets.buf, sources.buf, targets.len / 8, share, shares);
#if defined(__SSE2__)
        _mm_sfence();
#endif
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "parts, targets and sources that do not fit together, or a share that is none of them");
    }
    PyBuffer_Release(&parts);
    PyBuffer_Release(&targets);
    PyBuffer_Release(&sources);
    if (!right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"copy_rows", copy_rows, METH_VARARGS, "copy_rows(parts, targets, sources, share, shares): copy a share of the rows of some pages."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "row_copy", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_row_copy(void)
{
    return PyModule_Create(&definition);
}
