/* How the compiled classes bound the recursion in which an object that ends ends what it refers to.

   mypyc hands objects that lie deep to the trashcan of CPython, those of classes without the collector's header, too
   (`acyclic=True`). Up to Python 3.13 that links them through this header: it writes over what lies before them in memory. Here
   they wait in an array, and end when the outermost one has ended. Cost: O(1) amortized an object; memory for as many as ever
   waited at once. */

#ifndef UNIFIED_TREE_DEALLOC_H
#define UNIFIED_TREE_DEALLOC_H

#include <Python.h>

enum { DEALLOC_DEPTH = 50 };

#ifdef Py_GIL_DISABLED
#define DEALLOC_STATIC static _Thread_local
#else
#define DEALLOC_STATIC static
#endif

DEALLOC_STATIC int dealloc_depth;
DEALLOC_STATIC PyObject **dealloc_waiting; /* kept at the size that was once needed */
DEALLOC_STATIC size_t dealloc_count, dealloc_room;

/* Whether an object that lies too deep now waits; without memory for that it must go on. */
static int dealloc_later(PyObject *object)
{
    if (dealloc_depth < DEALLOC_DEPTH)
        return 0;
    if (dealloc_count == dealloc_room) {
        size_t room = dealloc_room ? 2 * dealloc_room : 64;
        PyObject **waiting = PyMem_RawRealloc(dealloc_waiting, room * sizeof *waiting);
        if (waiting == NULL)
            return 0;
        dealloc_waiting = waiting;
        dealloc_room = room;
    }
    dealloc_waiting[dealloc_count++] = object;
    return 1;
}

static void dealloc_waiting_ones(void)
{
    dealloc_depth = 1; /* so that only this loop ends what comes to wait meanwhile */
    while (dealloc_count > 0) {
        PyObject *object = dealloc_waiting[--dealloc_count];
        Py_TYPE(object)->tp_dealloc(object);
    }
    dealloc_depth = 0;
}

#undef CPy_TRASHCAN_BEGIN
#undef CPy_TRASHCAN_END
#define CPy_TRASHCAN_BEGIN(op, dealloc) \
    if (dealloc_later((PyObject *)(op))) \
        return; \
    dealloc_depth++;
#define CPy_TRASHCAN_END(op) \
    if (--dealloc_depth == 0 && dealloc_count > 0) \
        dealloc_waiting_ones();

#endif
