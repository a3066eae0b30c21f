/* The objects that wait for the outermost one to end: see dealloc.h. */

#include "dealloc.h"

#ifdef Py_GIL_DISABLED
#define DEALLOC_HELD _Thread_local
#else
#define DEALLOC_HELD
#endif

DEALLOC_HELD int dealloc_depth;
DEALLOC_HELD size_t dealloc_count;
static DEALLOC_HELD PyObject **dealloc_waiting; /* kept at the size that was once needed */
static DEALLOC_HELD size_t dealloc_room;

/* Whether an object that lies too deep now waits; without memory for that it must go on. */
int dealloc_later(PyObject *object)
{
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

void dealloc_waiting_ones(void)
{
    dealloc_depth = 1; /* so that only this loop ends what comes to wait meanwhile */
    while (dealloc_count > 0) {
        PyObject *object = dealloc_waiting[--dealloc_count];
        Py_TYPE(object)->tp_dealloc(object);
    }
    dealloc_depth = 0;
}
