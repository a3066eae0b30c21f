/* The monotonic clock in seconds, as `time.monotonic` reads it, without the checks and roundings on the way: the tree reads it
   several times a request, each time with its code out of the processor's caches. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>

static PyObject *monotonic_s(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyFloat_FromDouble((double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
}

static PyMethodDef methods[] = {
    {"monotonic_s", monotonic_s, METH_NOARGS, "monotonic_s(): see `clock`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "monotonic", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_monotonic(void)
{
    return PyModule_Create(&definition);
}
