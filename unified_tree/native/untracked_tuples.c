/* Tuples at which the garbage collector need not look, because nothing in them can be part of a cycle.

   It finds that out itself, when it comes by. But while as much is freed as is made it seldom does, and then looks at all that
   were made meanwhile, in one call of some request. Here they are taken off its list at once, under its own condition. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Whether a cycle could go through an item, as far as the collector knows. */
static int is_tracked(PyObject *item)
{
    return PyObject_IS_GC(item) && !(PyTuple_CheckExact(item) && !PyObject_GC_IsTracked(item));
}

static void untrack(PyObject *items)
{
    if (!PyObject_GC_IsTracked(items))
        return;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++)
        if (is_tracked(PyTuple_GET_ITEM(items, i)))
            return;
    PyObject_GC_UnTrack(items);
}

static PyObject *untracked(PyObject *module, PyObject *items)
{
    (void)module;
    if (!PyTuple_CheckExact(items)) {
        PyErr_SetString(PyExc_TypeError, "untracked(items): a tuple is needed");
        return NULL;
    }
    untrack(items);
    return Py_NewRef(items);
}

static PyObject *with_item(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !PyTuple_CheckExact(given[0])) {
        PyErr_SetString(PyExc_TypeError, "with_item(items, index, item): a tuple, an index and an item are needed");
        return NULL;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(given[0]), index = PyLong_AsSsize_t(given[1]);
    if (index == -1 && PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= size) {
        PyErr_SetString(PyExc_IndexError, "with_item(items, index, item): there is no such item");
        return NULL;
    }
    PyObject *made = PyTuple_New(size);
    if (made == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < size; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(i == index ? given[2] : PyTuple_GET_ITEM(given[0], i)));
    untrack(made);
    return made;
}

static PyMethodDef methods[] = {
    {"untracked", untracked, METH_O, "untracked(items): see `tuples`."},
    {"with_item", (PyCFunction)(void (*)(void))with_item, METH_FASTCALL, "with_item(items, index, item): see `tuples`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "untracked_tuples", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_untracked_tuples(void)
{
    return PyModule_Create(&definition);
}
