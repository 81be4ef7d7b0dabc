# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Reads, fuses and prints one image after another with the interpreter lock released.

plain_fusion.fuse states the same in NumPy; texts are equal byte for byte.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from tpudet.detection.submission.fusion.algorithms cimport (
    NMW,
    WBF,
    Box,
    Settings,
    fuse_clusters,
    sort_boxes,
    suppress,
)
from tpudet.detection.submission.fusion.label_table cimport (
    LabelTable,
    free_table,
    number_of,
    start_table,
)
from tpudet.detection.submission.fusion.prediction_text cimport (
    FINE,
    NO_MEMORY,
    Prediction,
    Sources,
    Text,
    final_fault,
    print_bytes,
    print_id,
    print_prediction,
    reserve,
    scan_prediction,
    skip_blanks,
)
from tpudet.detection.submission.fusion.workspace cimport (
    Workspace,
    fit_classes,
    free_space,
    grow_space,
)

import numpy as np

def fuse(block, const double[::1] weights, settings_table, int max_per_image):
    """Fuses a block of images; see plain_fusion.fuse."""
    cdef Sources sources = Sources(block.arrays())
    cdef const long long[::1] id_files = block.id_files
    cdef const long long[::1] id_starts = block.id_starts
    cdef const long long[::1] id_stops = block.id_stops
    cdef const long long[::1] piece_ends = block.piece_ends
    cdef const long long[::1] piece_files = block.piece_files
    cdef const long long[::1] piece_starts = block.piece_starts
    cdef const long long[::1] piece_stops = block.piece_stops
    cdef const int[::1] methods = settings_table.methods
    cdef const double[::1] ious = settings_table.ious
    cdef const double[::1] sigmas = settings_table.sigmas
    cdef const double[::1] thresholds = settings_table.thresholds
    cdef Py_ssize_t image
    cdef int num_settings = methods.shape[0]
    cdef int fault = FINE
    cdef double total_weight = 0
    cdef long long num_bytes = 0
    cdef long long num_read = 0
    cdef long long num_written = 0
    cdef LabelTable table
    cdef Workspace space
    cdef Text out
    cdef Settings* settings = NULL
    sources.check(id_files, id_starts, id_stops)
    sources.check(piece_files, piece_starts, piece_stops)
    check_ends(piece_ends, id_files.shape[0], piece_files.shape[0])
    if weights.shape[0] != sources.count:
        raise ValueError("not one weight for each file")
    for image in range(weights.shape[0]):
        total_weight += weights[image]
    faults = np.zeros((piece_files.shape[0], 2), np.int64)
    seen = np.zeros(num_settings, np.int64)
    cdef long long[:, ::1] faults_view = faults
    cdef long long[::1] seen_view = seen
    memset(&space, 0, sizeof(Workspace))
    memset(&out, 0, sizeof(Text))
    memset(&table, 0, sizeof(LabelTable))
    try:
        settings = <Settings*>malloc((num_settings + 1) * sizeof(Settings))
        if settings == NULL or not start_table(&table):
            raise MemoryError
        set_settings(settings, &table, settings_table.labels, methods, ious, sigmas, thresholds)
        for image in range(piece_files.shape[0]):
            num_bytes += piece_stops[image] - piece_starts[image]
        if not reserve(&out, num_bytes):  # hardly ever is more printed than was read
            raise MemoryError
        with nogil:
            for image in range(id_files.shape[0]):
                fault = read_image(
                    sources.data, piece_files, piece_starts, piece_stops, piece_ends[image],
                    piece_ends[image + 1], weights, settings, num_settings, &table, &space,
                    faults_view, seen_view, &num_read)
                if fault == FINE and not fuse_image(
                    sources.data[id_files[image]] + id_starts[image],
                    id_stops[image] - id_starts[image], settings, num_settings, total_weight,
                    max_per_image, &table, &space, &out, &num_written
                ):
                    fault = NO_MEMORY
                if fault == NO_MEMORY:  # any other: not one row of this image is good
                    break
        if fault == NO_MEMORY:
            raise MemoryError
        text = PyBytes_FromStringAndSize(<char*>out.data, out.size)
    finally:
        free(settings)
        free(out.data)
        free_table(&table)
        free_space(&space)
    return text, num_read, num_written, faults, seen


cdef int set_settings(
    Settings* settings, LabelTable* table, labels, const int[::1] methods,
    const double[::1] ious, const double[::1] sigmas, const double[::1] thresholds
) except -1:
    """Fills the settings, and the table with the labels that have settings of their own."""
    cdef int number
    if not len(labels) + 1 == methods.shape[0] == ious.shape[0] == sigmas.shape[0]:
        raise ValueError("settings differ in number")
    if thresholds.shape[0] != methods.shape[0]:
        raise ValueError("settings differ in number")
    for number in range(methods.shape[0]):
        settings[number] = Settings(
            methods[number], ious[number], sigmas[number], thresholds[number])
    for number, label in enumerate(labels):
        if number != number_of(table, <const unsigned char*>PyBytes_AS_STRING(label),
                               <int>PyBytes_GET_SIZE(label), True):
            raise ValueError(f"the settings name {label!r} twice")
    return 0


cdef int check_ends(
    const long long[::1] ends, Py_ssize_t num_images, Py_ssize_t num_pieces
) except -1:
    cdef Py_ssize_t i
    if ends.shape[0] != num_images + 1 or ends[0] != 0 or ends[num_images] != num_pieces:
        raise ValueError(f"ends must go from 0 to {num_pieces}, one more than images")
    for i in range(num_images):
        if ends[i] > ends[i + 1]:
            raise ValueError("ends must not fall")
    return 0


cdef int read_image(
    const unsigned char** data,
    const long long[::1] piece_files,
    const long long[::1] piece_starts,
    const long long[::1] piece_stops,
    Py_ssize_t first_piece,
    Py_ssize_t last_piece,
    const double[::1] weights,
    const Settings* settings,
    int num_settings,
    LabelTable* table,
    Workspace* space,
    long long[:, ::1] faults,
    long long[::1] seen,
    long long* num_read,
) noexcept nogil:
    """Fills `space.read`; FINE where at least one row is good, else its fault, or NO_MEMORY."""
    cdef Py_ssize_t piece
    cdef const unsigned char* base
    cdef const unsigned char* text
    cdef const unsigned char* stop
    cdef Prediction found
    cdef Box* box
    cdef int first, number, chosen, i, outcome = -1
    cdef int fault
    cdef double weight, score
    space.count = 0
    for piece in range(first_piece, last_piece):
        first = space.count
        fault = FINE
        weight = weights[piece_files[piece]]
        base = data[piece_files[piece]]
        stop = base + piece_stops[piece]
        text = skip_blanks(base + piece_starts[piece], stop)
        while text < stop:
            fault = scan_prediction(&text, stop, &found)
            if fault != FINE:
                break
            text = skip_blanks(text, stop)
            if space.count == space.capacity and not grow_space(space):
                return NO_MEMORY
            number = number_of(table, found.label, found.label_length, True)
            if number < 0:
                return NO_MEMORY
            space.classes[space.count] = number
            box = &space.read[space.count]
            box.x1 = found.box[0]
            box.y1 = found.box[1]
            box.x2 = found.box[2]
            box.y2 = found.box[3]
            box.area = (box.x2 - box.x1) * (box.y2 - box.y1)
            box.score = found.score * weight
            box.weight = weight
            box.text = found.box_text
            space.count += 1
        if fault != FINE:
            faults[piece, 0] = final_fault(fault, base + piece_starts[piece], stop)
            faults[piece, 1] = text - base
            space.count = first
            if outcome < 0:
                outcome = fault
            continue
        outcome = FINE
        num_read[0] += space.count - first
        for i in range(first, space.count):
            chosen = space.classes[i] + 1
            seen[chosen if chosen < num_settings else 0] += 1
        number = first
        for i in range(first, space.count):  # leaves out what is below the threshold or zero
            chosen = space.classes[i] + 1
            score = space.read[i].score
            if score > 0 and score >= settings[chosen if chosen < num_settings else 0].threshold:
                if number < i:
                    space.read[number] = space.read[i]
                    space.classes[number] = space.classes[i]
                number += 1
        space.count = number
    return outcome


cdef inline bint is_by_score(const Settings* settings) noexcept nogil:
    """Whether the method takes the boxes in descending order of score."""
    return settings.method == WBF or settings.method == NMW


cdef bint fuse_image(
    const unsigned char* image_id,
    Py_ssize_t id_size,
    const Settings* settings,
    int num_settings,
    double total_weight,
    int max_per_image,
    LabelTable* table,
    Workspace* space,
    Text* out,
    long long* num_written,
) noexcept nogil:
    """Fuses what was read class by class, prints in descending order of score; False: no memory."""
    cdef int num_present = 0
    cdef int num_results = 0
    cdef int start = 0
    cdef bint by_score = False
    cdef int i, j, number, count
    cdef const Settings* chosen
    cdef const Box* box
    cdef Prediction given
    if not fit_classes(space, table.count):
        return False
    for i in range(space.count):
        number = space.classes[i]
        if space.counts[number] == 0:
            space.present[num_present] = number
            num_present += 1
        space.counts[number] += 1
    for i in range(num_present):
        number = space.present[i]
        space.starts[number] = start
        start += space.counts[number]
        by_score |= is_by_score(&settings[number + 1 if number + 1 < num_settings else 0])
    if by_score:  # all at once: cheaper than to sort each class
        sort_boxes(space.read, &space.room, space.count)
    for i in range(space.count):
        j = space.room.keys[i].item if by_score else i
        number = space.classes[j]
        space.items[space.starts[number]] = j
        space.starts[number] += 1
    start = 0
    for i in range(num_present):
        number = space.present[i]
        chosen = &settings[number + 1 if number + 1 < num_settings else 0]
        count = space.counts[number]
        space.counts[number] = 0
        if is_by_score(chosen):
            j = fuse_clusters(space.read, &space.items[start], count, chosen, total_weight,
                              &space.room, &space.results[num_results])
        else:
            j = suppress(space.read, &space.items[start], count, chosen, &space.room,
                         &space.results[num_results])
        start += count
        for j in range(num_results, num_results + j):
            space.result_classes[j] = number
            num_results += 1
    sort_boxes(space.results, &space.room, num_results)
    if num_results > max_per_image > 0:
        num_results = max_per_image
    num_written[0] += num_results
    if not print_id(out, image_id, id_size):
        return False
    for i in range(num_results):
        box = &space.results[space.room.keys[i].item]
        number = space.result_classes[space.room.keys[i].item]
        given.label = table.labels[number].text
        given.label_length = table.labels[number].length
        given.score = box.score
        given.box_text = box.text
        given.box[0] = box.x1
        given.box[1] = box.y1
        given.box[2] = box.x2
        given.box[3] = box.y2
        if not print_prediction(out, &given, 5, 5, i > 0):
            return False
    return print_bytes(out, b"\n", 1)
