/* Looking up and setting the flags of many page ids, as `fallbacks` does and says, in one pass over the ids.

   Ids are the int64 items of `bytes` or of a one-dimensional array, flags the bytes of a `bytearray`, of which each is 0 or 1. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { NO = 0, YES = 1, BEYOND = -1, SEEN = 2 };

/* Ids as they lie in memory, and the flags they index. */
typedef struct {
    Py_buffer view; /* of an array; without an owner for bytes */
    const char *first;
    Py_ssize_t count, stride;
    unsigned char *flags;
    uint64_t size;
    int flag;
} Given;

static int parse(PyObject *const *given, Py_ssize_t count, Given *out)
{
    out->view.obj = NULL;
    if (count != 3 || !PyByteArray_CheckExact(given[1])) {
        PyErr_SetString(PyExc_TypeError, "ids, a bytearray of flags and a flag are needed");
        return -1;
    }
    out->flags = (unsigned char *)PyByteArray_AS_STRING(given[1]);
    out->size = (uint64_t)PyByteArray_GET_SIZE(given[1]);
    out->flag = PyObject_IsTrue(given[2]);
    if (out->flag < 0)
        return -1;
    if (PyBytes_CheckExact(given[0])) {
        out->first = PyBytes_AS_STRING(given[0]);
        out->count = PyBytes_GET_SIZE(given[0]) / (Py_ssize_t)sizeof(int64_t);
        out->stride = sizeof(int64_t);
        return 0;
    }
    if (PyObject_GetBuffer(given[0], &out->view, PyBUF_STRIDES) < 0)
        return -1;
    if (out->view.ndim != 1 || out->view.itemsize != sizeof(int64_t)) {
        PyBuffer_Release(&out->view);
        PyErr_SetString(PyExc_TypeError, "ids must be a one-dimensional array of int64");
        return -1;
    }
    out->first = out->view.buf;
    out->count = out->view.shape[0];
    out->stride = out->view.strides[0];
    return 0;
}

/* The id that lies here; bytes need not be aligned. As a number without a sign, what is negative is beyond every size. */
static inline uint64_t id_here(const char *here)
{
    uint64_t id;
    memcpy(&id, here, sizeof id);
    return id;
}

static void end(Given *given)
{
    if (given->view.obj != NULL)
        PyBuffer_Release(&given->view);
}

/* The loops keep in locals what they need: a flag is a character, and any store of one might change what a pointer leads to. */

static PyObject *are(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Given given;
    if (parse(arguments, count, &given) < 0)
        return NULL;
    unsigned char *const flags = given.flags, flag = (unsigned char)given.flag;
    const char *here = given.first;
    const Py_ssize_t stride = given.stride, last = given.count;
    const uint64_t size = given.size;
    Py_ssize_t i = 0;
    int found = YES;
    for (; i < last; i++, here += stride) { /* a flag that was looked at is marked, so that an id that comes twice is found */
        uint64_t id = id_here(here);
        if (id >= size) {
            found = (int64_t)id < 0 ? NO : BEYOND;
            break;
        }
        if (flags[id] != flag) {
            found = NO;
            break;
        }
        flags[id] = flag | SEEN;
    }
    for (; i > 0; i--) {
        here -= stride;
        flags[id_here(here)] = flag;
    }
    end(&given);
    return PyLong_FromLong(found);
}

static PyObject *turn(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Given given;
    if (parse(arguments, count, &given) < 0)
        return NULL;
    unsigned char *const flags = given.flags, flag = (unsigned char)given.flag, other = !flag;
    const char *here = given.first;
    const Py_ssize_t stride = given.stride, last = given.count;
    const uint64_t size = given.size;
    Py_ssize_t i = 0;
    int found = YES;
    for (; i < last; i++, here += stride) { /* an id that comes twice has been turned when it comes again */
        uint64_t id = id_here(here);
        if (id >= size) {
            found = (int64_t)id < 0 ? NO : BEYOND;
            break;
        }
        if (flags[id] != other) {
            found = NO;
            break;
        }
        flags[id] = flag;
    }
    if (found != YES) {
        for (; i > 0; i--) {
            here -= stride;
            flags[id_here(here)] = other;
        }
    }
    end(&given);
    return PyLong_FromLong(found);
}

static PyObject *put(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Given given;
    if (parse(arguments, count, &given) < 0)
        return NULL;
    unsigned char *const flags = given.flags, flag = (unsigned char)given.flag;
    const char *here = given.first;
    const Py_ssize_t stride = given.stride, last = given.count;
    const uint64_t size = given.size;
    Py_ssize_t i = 0;
    for (; i < last; i++, here += stride) {
        uint64_t id = id_here(here);
        if (id >= size)
            break;
        flags[id] = flag;
    }
    end(&given);
    if (i < last) {
        PyErr_SetString(PyExc_IndexError, "an id has no flag");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"are", (PyCFunction)(void (*)(void))are, METH_FASTCALL, "are(ids, flags, flag): see `NumpyFlags.are`."},
    {"turn", (PyCFunction)(void (*)(void))turn, METH_FASTCALL, "turn(ids, flags, flag): see `NumpyFlags.turn`."},
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, "put(ids, flags, flag): see `NumpyFlags.put`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "page_flags", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_page_flags(void)
{
    return PyModule_Create(&definition);
}
