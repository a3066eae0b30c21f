/* How the compiled classes bound the recursion in which an object that ends ends what it refers to.

   mypyc hands objects that lie deep to the trashcan of CPython, those of classes without the collector's header, too
   (`acyclic=True`). Up to Python 3.13 that links them through this header: it writes over what lies before them in memory. Here
   they wait in an array, and end when the outermost one has ended. Cost: O(1) amortized an object; memory for as many as ever
   waited at once. `dealloc.c` has the array; all parts that are compiled share it. */

#ifndef UNIFIED_TREE_DEALLOC_H
#define UNIFIED_TREE_DEALLOC_H

#include <Python.h>

enum { DEALLOC_DEPTH = 50 };

#ifdef Py_GIL_DISABLED
#define DEALLOC_SHARED extern _Thread_local
#else
#define DEALLOC_SHARED extern
#endif

DEALLOC_SHARED int dealloc_depth;
DEALLOC_SHARED size_t dealloc_count;

int dealloc_later(PyObject *object);
void dealloc_waiting_ones(void);

#undef CPy_TRASHCAN_BEGIN
#undef CPy_TRASHCAN_END
#define CPy_TRASHCAN_BEGIN(op, dealloc) \
    if (dealloc_depth >= DEALLOC_DEPTH && dealloc_later((PyObject *)(op))) \
        return; \
    dealloc_depth++;
#define CPy_TRASHCAN_END(op) \
    if (--dealloc_depth == 0 && dealloc_count > 0) \
        dealloc_waiting_ones();

#endif
