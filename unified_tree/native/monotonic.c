/* The monotonic clock in seconds, as of the kernel's last tick: 1 to 10 ms behind `time.monotonic` at most. The tree reads it
   several times a request, each time with its code out of the processor's caches; the exact one costs a wait for the
   processor's counter besides. Where there is no such clock, it is the exact one. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>

#ifdef CLOCK_MONOTONIC_COARSE
#define CLOCK CLOCK_MONOTONIC_COARSE
#else
#define CLOCK CLOCK_MONOTONIC
#endif

static PyObject *coarse_monotonic_s(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    struct timespec now;
    if (clock_gettime(CLOCK, &now) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyFloat_FromDouble((double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
}

static PyMethodDef methods[] = {
    {"coarse_monotonic_s", coarse_monotonic_s, METH_NOARGS, "coarse_monotonic_s(): see `chosen`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "monotonic", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_monotonic(void)
{
    return PyModule_Create(&definition);
}
