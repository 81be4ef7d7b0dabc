# cython: language_level=3
"""The memory in which one image after another is fused; it grows and is used again."""

from libc.stdlib cimport calloc, free, realloc

from tpudet.detection.submission.fusion.algorithms cimport LANES, Box, Cluster, Key, Room

cdef struct Workspace:  # of one image; arrays of `capacity`, those by class of `num_classes`
    int capacity
    int num_classes
    Box* read
    Box* results
    int* classes  # of `read`
    int* items  # places in `read`, class by class
    int* result_classes
    Room room
    int* counts  # by class; 0 between images
    int* starts  # by class
    int* present  # classes of this image in the order of their first box
    int count  # of `read`


cdef inline bint grow_space(Workspace* space) noexcept nogil:
    cdef int capacity = 2 * space.capacity + 1024
    cdef Room* room = &space.room
    return (
        grow(<void**>&space.read, capacity * sizeof(Box))
        and grow(<void**>&space.results, capacity * sizeof(Box))
        and grow(<void**>&space.classes, capacity * sizeof(int))
        and grow(<void**>&space.items, capacity * sizeof(int))
        and grow(<void**>&space.result_classes, capacity * sizeof(int))
        and grow(<void**>&room.keys, capacity * sizeof(Key))
        and grow(<void**>&room.spare, capacity * sizeof(Key))
        and grow(<void**>&room.runs, (capacity + 1) * sizeof(int))
        and grow(<void**>&room.columns, (5 * <size_t>capacity + LANES) * sizeof(double))
        and grow(<void**>&room.overlaps, (capacity + LANES) * sizeof(double))
        and grow(<void**>&room.scores, capacity * sizeof(double))
        and grow(<void**>&room.items, capacity * sizeof(int))
        and grow(<void**>&room.clusters, capacity * sizeof(Cluster))
        and set_capacity(space, capacity)
    )


cdef inline bint set_capacity(Workspace* space, int capacity) noexcept nogil:
    space.capacity = capacity
    space.room.room = capacity
    return True


cdef inline bint fit_classes(Workspace* space, int num_classes) noexcept nogil:
    """Makes room for the classes met so far; the counts are zero then, as between images."""
    if num_classes <= space.num_classes:
        return True
    num_classes = 2 * num_classes + 1024
    free(space.counts)
    space.counts = <int*>calloc(num_classes, sizeof(int))
    if (
        space.counts == NULL
        or not grow(<void**>&space.starts, num_classes * sizeof(int))
        or not grow(<void**>&space.present, num_classes * sizeof(int))
    ):
        return False
    space.num_classes = num_classes
    return True


cdef inline bint grow(void** memory, size_t size) noexcept nogil:
    cdef void* grown = realloc(memory[0], size)
    if grown == NULL:
        return False
    memory[0] = grown
    return True


cdef inline void free_space(Workspace* space) noexcept nogil:
    free(space.read)
    free(space.results)
    free(space.classes)
    free(space.items)
    free(space.result_classes)
    free(space.room.keys)
    free(space.room.spare)
    free(space.room.runs)
    free(space.room.columns)
    free(space.room.overlaps)
    free(space.room.scores)
    free(space.room.items)
    free(space.room.clusters)
    free(space.counts)
    free(space.starts)
    free(space.present)
