# cython: language_level=3
"""Labels numbered in the order in which they are met, without Python objects.

A table keeps addresses of the texts, not copies: they must stay where they are as long as it lives.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

cdef struct Label:
    const unsigned char* text
    int length
    uint32_t hash

cdef struct LabelTable:
    Label* labels  # by number
    int32_t* slots  # open addressing; number + 1, 0 is free
    int count
    int num_slots  # a power of two, more than twice `count`


cdef inline bint start_table(LabelTable* table) noexcept nogil:
    """Makes an empty table; False: no memory (it may be given to free_table all the same)."""
    table.count = 0
    table.num_slots = 1024
    table.slots = <int32_t*>calloc(table.num_slots, sizeof(int32_t))
    table.labels = <Label*>realloc(NULL, table.num_slots // 2 * sizeof(Label))
    return table.slots != NULL and table.labels != NULL


cdef inline void free_table(LabelTable* table) noexcept nogil:
    free(table.slots)
    free(table.labels)


cdef inline bint grow_table(LabelTable* table) noexcept nogil:
    cdef int num_slots = table.num_slots * 2
    cdef int number
    cdef uint32_t slot
    cdef int32_t* slots = <int32_t*>calloc(num_slots, sizeof(int32_t))
    cdef Label* labels = <Label*>realloc(table.labels, num_slots // 2 * sizeof(Label))
    if labels != NULL:
        table.labels = labels
    if labels == NULL or slots == NULL:
        free(slots)
        return False
    for number in range(table.count):
        slot = labels[number].hash & (num_slots - 1)
        while slots[slot]:
            slot = (slot + 1) & (num_slots - 1)
        slots[slot] = number + 1
    free(table.slots)
    table.slots = slots
    table.num_slots = num_slots
    return True


cdef inline uint32_t hash_of(const unsigned char* text, int length) noexcept nogil:
    """Of the first and the last eight bytes, which are all bytes of most labels."""
    cdef uint64_t first = 0
    cdef uint64_t last = 0
    cdef int i
    if length >= 8:
        memcpy(&first, text, 8)
        memcpy(&last, text + length - 8, 8)
    else:
        for i in range(length):
            first = first << 8 | text[i]
    first = (first * <uint64_t>0x9E3779B97F4A7C15 ^ last) * <uint64_t>0xD6E8FEB86659FD93
    return <uint32_t>(first >> 32)


cdef inline int number_of(
    LabelTable* table, const unsigned char* text, int length, bint add
) noexcept nogil:
    """The number of a label; -1: it is not in the table, or there is no memory to add it."""
    cdef uint32_t hash = hash_of(text, length)
    cdef uint32_t slot
    cdef Label* label
    slot = hash & (table.num_slots - 1)
    while table.slots[slot]:
        label = &table.labels[table.slots[slot] - 1]
        if label.hash == hash and label.length == length and not memcmp(label.text, text, length):
            return table.slots[slot] - 1
        slot = (slot + 1) & (table.num_slots - 1)
    if not add:
        return -1
    if 2 * (table.count + 1) >= table.num_slots:
        if not grow_table(table):
            return -1
        slot = hash & (table.num_slots - 1)
        while table.slots[slot]:
            slot = (slot + 1) & (table.num_slots - 1)
    table.labels[table.count].text = text
    table.labels[table.count].length = length
    table.labels[table.count].hash = hash
    table.slots[slot] = table.count + 1
    table.count += 1
    return table.count - 1
