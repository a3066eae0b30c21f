/* Comparing keys and edges, and hashing a page, as `fallbacks` does and says, without slices.

   Keys and edges are `bytes` or other contiguous buffers. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { STRETCH = 4096 }; /* bytes that are compared at once, and again one by one where they differ */
enum { LANES = 4 };      /* words that are hashed side by side, for each waits for the one before it in its lane */
static const uint64_t FACTOR = 0x9E3779B97F4A7C15u;

/* What is in a buffer; without an owner for bytes. */
typedef struct {
    Py_buffer view;
    const char *first;
    Py_ssize_t size;
} Data;

static int open_data(PyObject *given, Data *out)
{
    out->view.obj = NULL;
    if (PyBytes_CheckExact(given)) {
        out->first = PyBytes_AS_STRING(given);
        out->size = PyBytes_GET_SIZE(given);
        return 0;
    }
    if (PyObject_GetBuffer(given, &out->view, PyBUF_SIMPLE) < 0)
        return -1;
    out->first = out->view.buf;
    out->size = out->view.len;
    return 0;
}

static void close_data(Data *data)
{
    if (data->view.obj != NULL)
        PyBuffer_Release(&data->view);
}

static int numbers(PyObject *const *given, Py_ssize_t count, Py_ssize_t *out)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        out[i] = PyLong_AsSsize_t(given[i]);
        if (out[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static uint64_t word_at(const char *first)
{
    uint64_t word;
    memcpy(&word, first, sizeof word);
    return word;
}

/* How many bytes agree from the first on; where they differ, a whole number of words of eight. */
static Py_ssize_t equal_bytes(const char *ours, const char *theirs, Py_ssize_t size)
{
    Py_ssize_t at = 0;
    while (at < size) {
        Py_ssize_t step = size - at < STRETCH ? size - at : STRETCH;
        if (memcmp(ours + at, theirs + at, (size_t)step) != 0)
            break;
        at += step;
    }
    while (at + (Py_ssize_t)sizeof(uint64_t) <= size && word_at(ours + at) == word_at(theirs + at))
        at += sizeof(uint64_t);
    return at;
}

static PyObject *agreement(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Py_ssize_t number[3]; /* position, stop, page */
    Data data, edge;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "agreement(data, edge, position, stop, page)");
        return NULL;
    }
    if (numbers(given + 2, 3, number) < 0)
        return NULL;
    Py_ssize_t position = number[0], stop = number[1], page = number[2], agreed = 0;
    if (position < 0 || page <= 0) {
        PyErr_SetString(PyExc_ValueError, "the position must not be negative, and a page have bytes");
        return NULL;
    }
    if (open_data(given[0], &data) < 0)
        return NULL;
    if (open_data(given[1], &edge) < 0) {
        close_data(&data);
        return NULL;
    }
    if (stop > data.size)
        stop = data.size;
    if (position < stop) {
        Py_ssize_t size = stop - position < edge.size ? stop - position : edge.size;
        size -= size % page;
        agreed = equal_bytes(data.first + position, edge.first, size);
        agreed -= agreed % page;
    }
    close_data(&edge);
    close_data(&data);
    return PyLong_FromSsize_t(agreed);
}

static uint64_t turned(uint64_t word)
{
    return word << 29 | word >> 35;
}

static uint64_t with_word(uint64_t code, uint64_t word)
{
    code = (code ^ word) * FACTOR;
    return code ^ code >> 32;
}

static PyObject *page_code(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Py_ssize_t number[2]; /* position, page_bytes */
    Data data;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "page_code(length, data, position, page_bytes)");
        return NULL;
    }
    Py_ssize_t length = PyLong_AsSsize_t(given[0]);
    if ((length == -1 && PyErr_Occurred()) || numbers(given + 2, 2, number) < 0)
        return NULL;
    if (number[0] < 0 || number[1] < 0) {
        PyErr_SetString(PyExc_ValueError, "neither the position nor a page's size is negative");
        return NULL;
    }
    if (open_data(given[1], &data) < 0)
        return NULL;
    Py_ssize_t at = number[0], end = at > data.size - number[1] ? data.size : at + number[1];
    uint64_t code = (uint64_t)length * 0xD6E8FEB86659FD93u + 1;
    if (end - at >= (Py_ssize_t)sizeof(uint64_t[LANES])) {
        uint64_t a = code, b = code + 1, c = code + 2, d = code + 3;
        for (; at + (Py_ssize_t)sizeof(uint64_t[LANES]) <= end; at += sizeof(uint64_t[LANES])) {
            const char *words = data.first + at;
            a = turned(a ^ word_at(words)) * FACTOR;
            b = turned(b ^ word_at(words + 8)) * FACTOR;
            c = turned(c ^ word_at(words + 16)) * FACTOR;
            d = turned(d ^ word_at(words + 24)) * FACTOR;
        }
        code = with_word(with_word(with_word(with_word(code, a), b), c), d);
    }
    for (; at + (Py_ssize_t)sizeof(uint64_t) <= end; at += sizeof(uint64_t))
        code = with_word(code, word_at(data.first + at));
    close_data(&data);
    return PyLong_FromUnsignedLongLong(code >> 2); /* what compiled code has as a short number */
}

static PyMethodDef methods[] = {
    {"agreement", (PyCFunction)(void (*)(void))agreement, METH_FASTCALL,
     "agreement(data, edge, position, stop, page): see `fallbacks`."},
    {"page_code", (PyCFunction)(void (*)(void))page_code, METH_FASTCALL,
     "page_code(length, data, position, page_bytes): see `fallbacks`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "key_bytes", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_key_bytes(void)
{
    return PyModule_Create(&definition);
}
