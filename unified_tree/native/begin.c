/* How each hot module begins: the library that all of them are compiled into has what makes it, in a capsule.

   All have this same file as their own extension, under their names, with a function `PyInit_NAME` for each. `modules.h` lists
   them, `library.h` names the library; setup.py writes both. */

#include <Python.h>

#include "library.h"

static void *capsule(const char *kind, const char *module)
{
    char name[256];
    void *found = NULL;
    PyObject *library = PyImport_ImportModule(LIBRARY);
    if (library == NULL)
        return NULL;
    PyOS_snprintf(name, sizeof name, "%s_%s", kind, module);
    PyObject *held = PyObject_GetAttrString(library, name);
    Py_DECREF(library);
    if (held == NULL)
        return NULL;
    PyOS_snprintf(name, sizeof name, LIBRARY ".%s_%s", kind, module);
    found = PyCapsule_GetPointer(held, name);
    Py_DECREF(held);
    return found;
}

#ifdef Py_GIL_DISABLED

static int begin(PyObject *module, const char *name)
{
    int (*run)(PyObject *) = (int (*)(PyObject *))capsule("exec", name);
    return run == NULL ? -1 : run(module);
}

#define MODULE(NAME, FULL) \
    static int NAME##_exec(PyObject *module) { return begin(module, FULL); } \
    static PyModuleDef_Slot NAME##_slots[] = { \
        {Py_mod_exec, NAME##_exec}, \
        {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, \
        {Py_mod_gil, Py_MOD_GIL_NOT_USED}, \
        {0, NULL}, \
    }; \
    static struct PyModuleDef NAME##_module = {PyModuleDef_HEAD_INIT, .m_name = #NAME, .m_slots = NAME##_slots}; \
    PyMODINIT_FUNC PyInit_##NAME(void) { return PyModuleDef_Init(&NAME##_module); }

#else

static PyObject *begin(const char *name)
{
    PyObject *(*make)(void) = (PyObject *(*)(void))capsule("init", name);
    return make == NULL ? NULL : make();
}

#define MODULE(NAME, FULL) \
    PyMODINIT_FUNC PyInit_##NAME(void) { return begin(FULL); }

#endif

#include "modules.h"
