/* Looking up and setting the flags of many page ids, as `numpy_flags` does and says, in one pass over the ids.

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

static int64_t id_at(const Given *given, Py_ssize_t i)
{
    int64_t id;
    memcpy(&id, given->first + i * given->stride, sizeof id); /* bytes need not be aligned */
    return id;
}

static void end(Given *given)
{
    if (given->view.obj != NULL)
        PyBuffer_Release(&given->view);
}

static PyObject *are(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Given given;
    if (parse(arguments, count, &given) < 0)
        return NULL;
    unsigned char flag = (unsigned char)given.flag;
    Py_ssize_t i = 0;
    int found = YES;
    for (; i < given.count; i++) { /* a flag that was looked at is marked, so that an id that comes twice is found */
        int64_t id = id_at(&given, i);
        if (id < 0 || (uint64_t)id >= given.size) {
            found = id < 0 ? NO : BEYOND;
            break;
        }
        if (given.flags[id] != flag) {
            found = NO;
            break;
        }
        given.flags[id] = flag | SEEN;
    }
    while (i-- > 0)
        given.flags[id_at(&given, i)] = flag;
    end(&given);
    return PyLong_FromLong(found);
}

static PyObject *put(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Given given;
    if (parse(arguments, count, &given) < 0)
        return NULL;
    Py_ssize_t i = 0;
    for (; i < given.count; i++) {
        uint64_t id = (uint64_t)id_at(&given, i);
        if (id >= given.size)
            break;
        given.flags[id] = (unsigned char)given.flag;
    }
    int is_whole = i == given.count;
    end(&given);
    if (!is_whole) {
        PyErr_SetString(PyExc_IndexError, "an id has no flag");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"are", (PyCFunction)(void (*)(void))are, METH_FASTCALL, "are(ids, flags, flag): see `NumpyFlags.are`."},
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, "put(ids, flags, flag): see `NumpyFlags.put`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "page_flags", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_page_flags(void)
{
    return PyModule_Create(&definition);
}
