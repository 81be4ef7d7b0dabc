# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Finds, reads and prints the rows of submission files with the interpreter lock released.

plain_text.py states the same functions in Python; the two give equal results. No function reads
outside of the ranges that it is given, and ranges outside of their file are refused.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memset

from tpudet.detection.submission.fusion.label_table cimport (
    LabelTable,
    free_table,
    number_of,
    start_table,
)

from tpudet.detection.submission.fusion.mapped_files cimport unwatch, watch

import numpy as np

cdef enum:
    LONGEST_ID = 255


cdef class Sources:
    """The bytes of the files that a block refers to: arrays of uint8, kept alive by this object."""

    def __cinit__(self, arrays):
        cdef const unsigned char[::1] view
        self.count = len(arrays)
        self.kept = []
        self.data = <const unsigned char**>malloc((self.count + 1) * sizeof(void*))
        self.sizes = <Py_ssize_t*>malloc((self.count + 1) * sizeof(Py_ssize_t))
        if self.data == NULL or self.sizes == NULL:
            raise MemoryError
        for i, array in enumerate(arrays):
            view = array
            self.kept.append(view)
            self.sizes[i] = view.shape[0]
            self.data[i] = &view[0] if view.shape[0] else NULL

    def __dealloc__(self):
        free(self.data)
        free(self.sizes)

    cdef int check(self, const long long[::1] files, const long long[::1] starts,
                   const long long[::1] stops) except -1:
        cdef Py_ssize_t i
        if files.shape[0] != starts.shape[0] or files.shape[0] != stops.shape[0]:
            raise ValueError("files, starts and stops differ in number")
        for i in range(files.shape[0]):
            if not 0 <= files[i] < self.count:
                raise ValueError(f"no file {files[i]}")
            if not 0 <= starts[i] <= stops[i] <= self.sizes[files[i]]:
                raise ValueError(f"no bytes {starts[i]}:{stops[i]} in file {files[i]}")
        return 0


cdef class WatchedMap:
    """A mapped file; see plain_text.WatchedMap."""

    cdef const unsigned char[::1] data
    cdef bytes message
    cdef int number

    def __init__(self, const unsigned char[::1] data, bytes message):
        self.data = data
        self.message = message

    def __enter__(self):
        self.number = watch(&self.data[0], self.data.shape[0], PyBytes_AS_STRING(self.message))

    def __exit__(self, *error):
        unwatch(self.number)


def index_rows(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t limit, long long line):
    """Finds the rows that begin in `start:limit`; see plain_text.index_rows."""
    cdef Py_ssize_t capacity = 1024
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t size = data.shape[0]
    cdef const unsigned char* base
    cdef const unsigned char* text
    cdef const unsigned char* newline
    cdef const unsigned char* stop
    cdef long long[:, ::1] rows
    if not 0 <= start <= limit <= size:
        raise ValueError(f"no bytes {start}:{limit} among {size}")
    found = np.empty((capacity, 6), np.int64)
    rows = found
    if start == limit:
        return found[:0], start, line
    base = &data[0]
    while start < limit:
        if count == capacity:
            capacity *= 2
            found = np.resize(found, (capacity, 6))
            rows = found
        with nogil:
            while start < limit and count < capacity:
                text = base + start
                newline = <const unsigned char*>memchr(text, 10, size - start)
                stop = base + size if newline == NULL else newline
                start = (stop - base) + (newline != NULL)
                while stop > text and ((stop - 1)[0] == 13 or is_blank((stop - 1)[0])):
                    stop -= 1
                text = skip_blanks(text, stop)
                if text < stop:
                    rows[count, 5] = split_row(base, text, stop, &rows[count, 0])
                    rows[count, 4] = line
                    count += 1
                line += 1
    return found[:count].copy(), start, line


cdef int split_row(
    const unsigned char* base, const unsigned char* text, const unsigned char* stop, long long* row
) noexcept nogil:
    """Sets id start, id stop, text start, text stop; returns 0, or -1 where it is no such row."""
    cdef const unsigned char* first = text
    cdef const unsigned char* comma = <const unsigned char*>memchr(text, 44, stop - text)
    cdef const unsigned char* end
    row[0] = row[1] = row[2] = row[3] = text - base
    if comma == NULL:
        return -1
    text = comma
    while text > first and is_blank((text - 1)[0]):
        text -= 1
    end = text
    if end - first >= 2 and first[0] == 34 and (end - 1)[0] == 34:
        first += 1
        end -= 1
    if not 0 < end - first <= LONGEST_ID:
        return -1
    text = first
    while text < end:
        if text[0] < 32 or text[0] == 34 or text[0] == 127:
            return -1
        text += 1
    row[0] = first - base
    row[1] = end - base
    text = skip_blanks(comma + 1, stop)
    if stop - text >= 2 and text[0] == 34 and (stop - 1)[0] == 34:
        text += 1
        stop -= 1
        text = skip_blanks(text, stop)
        while stop > text and is_blank((stop - 1)[0]):
            stop -= 1
    row[2] = text - base
    row[3] = stop - base
    return 0


def scan(block, known_labels):
    """Reads the predictions of a block; see plain_text.scan."""
    cdef Sources sources = Sources(block.arrays())
    cdef const long long[::1] piece_ends = block.piece_ends
    cdef const long long[::1] piece_files = block.piece_files
    cdef const long long[::1] piece_starts = block.piece_starts
    cdef const long long[::1] piece_stops = block.piece_stops
    cdef Py_ssize_t num_pieces = piece_files.shape[0]
    cdef Py_ssize_t bound = 1
    cdef Py_ssize_t image, piece
    cdef LabelTable table
    cdef Columns columns
    sources.check(piece_files, piece_starts, piece_stops)
    check_ends(piece_ends, num_pieces)
    for piece in range(num_pieces):  # `a 0 0 0 0 0 ` is the shortest prediction
        bound += (piece_stops[piece] - piece_starts[piece] + 1) // 12
    image_ends = np.zeros(piece_ends.shape[0], np.int64)
    faults = np.zeros((num_pieces, 2), np.int64)
    kinds = np.int32, np.int64, np.int32, np.int32, np.float64
    arrays_found = [np.empty(bound, kind) for kind in kinds] + [np.empty((bound, 4))]
    cdef long long[::1] ends_view = image_ends
    cdef long long[:, ::1] faults_view = faults
    files, starts, lengths, numbers, scores, boxes = arrays_found
    point_at(&columns, files, starts, lengths, numbers, scores, boxes)
    memset(&table, 0, sizeof(LabelTable))
    try:
        if not start_table(&table):
            raise MemoryError
        add_labels(&table, known_labels)
        with nogil:
            for image in range(piece_ends.shape[0] - 1):
                for piece in range(piece_ends[image], piece_ends[image + 1]):
                    faults_view[piece, 0] = scan_piece(
                        <int>piece_files[piece], sources.data[piece_files[piece]],
                        piece_starts[piece], piece_stops[piece], &table, &columns,
                        &faults_view[piece, 1])
                ends_view[image + 1] = columns.count
    finally:
        free_table(&table)
    return image_ends, *(array[:columns.count] for array in arrays_found), faults


cdef int point_at(
    Columns* columns, int[::1] files, long long[::1] starts, int[::1] lengths, int[::1] numbers,
    double[::1] scores, double[:, ::1] boxes
) except -1:
    """Arrays that hold at least one entry; they must outlive the columns."""
    columns.files = &files[0]
    columns.starts = &starts[0]
    columns.lengths = &lengths[0]
    columns.numbers = &numbers[0]
    columns.scores = &scores[0]
    columns.boxes = &boxes[0, 0]
    columns.count = 0
    return 0


def print_rows(
    block,
    const unsigned char[::1] written,
    rows,
    known_labels,
    int score_decimals,
    int box_decimals,
):
    """Prints rows `id,predictions`; see plain_text.print_rows."""
    cdef Sources sources = Sources(block.arrays())
    cdef const long long[::1] id_files = block.id_files
    cdef const long long[::1] id_starts = block.id_starts
    cdef const long long[::1] id_stops = block.id_stops
    cdef const long long[::1] image_ends = rows.image_ends
    cdef const int[::1] label_files = rows.label_files
    cdef const long long[::1] label_starts = rows.label_starts
    cdef const int[::1] label_lengths = rows.label_lengths
    cdef const int[::1] label_numbers = rows.label_numbers
    cdef const double[::1] scores = rows.scores
    cdef const double[:, ::1] boxes = rows.boxes
    cdef Py_ssize_t num_images = image_ends.shape[0] - 1
    cdef Py_ssize_t count = scores.shape[0]
    cdef Py_ssize_t image, i, j
    cdef LabelTable table
    cdef Prediction given
    cdef Text out
    cdef bint done = True
    sources.check(id_files, id_starts, id_stops)
    check_ends(image_ends, count)
    check_numbers(scores, boxes, score_decimals, box_decimals)
    if num_images != id_files.shape[0] or num_images != written.shape[0]:
        raise ValueError("ids, written and image_ends differ in number")
    memset(&out, 0, sizeof(Text))
    memset(&table, 0, sizeof(LabelTable))
    try:
        if not start_table(&table):
            raise MemoryError
        add_labels(&table, known_labels)
        check_labels(sources, &table, count, label_files, label_starts, label_lengths,
                     label_numbers)
        with nogil:
            for image in range(num_images):
                if not done or not written[image]:
                    continue
                done = print_id(&out, sources.data[id_files[image]] + id_starts[image],
                                id_stops[image] - id_starts[image])
                for i in range(image_ends[image], image_ends[image + 1]):
                    if label_numbers[i] >= 0:
                        given.label = table.labels[label_numbers[i]].text
                        given.label_length = table.labels[label_numbers[i]].length
                    else:
                        given.label = sources.data[label_files[i]] + label_starts[i]
                        given.label_length = label_lengths[i]
                    given.score = scores[i]
                    given.box_text = NULL
                    for j in range(4):
                        given.box[j] = boxes[i, j]
                    done &= print_prediction(&out, &given, score_decimals, box_decimals,
                                             i > image_ends[image])
                done &= print_bytes(&out, b"\n", 1)
        if not done:
            raise MemoryError
        return PyBytes_FromStringAndSize(<char*>out.data, out.size)
    finally:
        free(out.data)
        free_table(&table)


cdef int check_labels(
    Sources sources, LabelTable* table, Py_ssize_t count, const int[::1] files,
    const long long[::1] starts, const int[::1] lengths, const int[::1] numbers
) except -1:
    cdef Py_ssize_t i
    if not files.shape[0] == starts.shape[0] == lengths.shape[0] == numbers.shape[0] == count:
        raise ValueError(f"not {count} labels")
    for i in range(count):
        if numbers[i] >= table.count:
            raise ValueError(f"no known label {numbers[i]}")
        if numbers[i] < 0 and not (
            0 <= files[i] < sources.count and 0 <= lengths[i] <= LONGEST_LABEL
            and 0 <= starts[i] <= sources.sizes[files[i]] - lengths[i]
        ):
            raise ValueError(f"no label at {starts[i]} in file {files[i]}")
    return 0


def parse_numbers(tokens):
    """The value of each token (bytes), None where it is not a number. For tests of the parser."""
    cdef const unsigned char* text
    cdef const unsigned char* stop
    cdef double value
    cdef int num_usual = 0
    values = []
    for token in tokens:
        text = <const unsigned char*>PyBytes_AS_STRING(token)
        stop = text + PyBytes_GET_SIZE(token)
        values.append(value if parse_number(&text, stop, &value, &num_usual) and text == stop else None)
    return values


cdef int add_labels(LabelTable* table, known_labels) except -1:
    cdef int number = 0
    for label in known_labels:
        if len(label) > LONGEST_LABEL:
            raise ValueError(f"a label has at most {LONGEST_LABEL} bytes: {label!r}")
        if number_of(table, <const unsigned char*>PyBytes_AS_STRING(label),
                     <int>PyBytes_GET_SIZE(label), True) != number:
            raise ValueError(f"the known labels hold {label!r} twice")
        number += 1
    return 0


cdef int check_ends(const long long[::1] ends, Py_ssize_t last) except -1:
    cdef Py_ssize_t i
    if ends.shape[0] < 1 or ends[0] != 0 or ends[ends.shape[0] - 1] != last:
        raise ValueError(f"ends must go from 0 to {last}")
    for i in range(ends.shape[0] - 1):
        if ends[i] > ends[i + 1]:
            raise ValueError("ends must not fall")
    return 0


cdef int check_numbers(const double[::1] scores, const double[:, ::1] boxes,
                      int score_decimals, int box_decimals) except -1:
    cdef Py_ssize_t i, j
    if not (0 <= score_decimals <= MAX_DECIMALS and 0 <= box_decimals <= MAX_DECIMALS):
        raise ValueError(f"0 to {MAX_DECIMALS} decimals can be printed")
    if boxes.shape[1] != 4:
        raise ValueError(f"boxes have {boxes.shape[1]} columns, not 4")
    if boxes.shape[0] != scores.shape[0]:
        raise ValueError(f"{boxes.shape[0]} boxes and {scores.shape[0]} scores")
    for i in range(scores.shape[0]):
        if not -LARGEST <= scores[i] <= LARGEST:
            raise ValueError(f"score {scores[i]} cannot be printed")
    for i in range(boxes.shape[0]):
        for j in range(4):
            if not -LARGEST <= boxes[i, j] <= LARGEST:
                raise ValueError(f"coordinate {boxes[i, j]} cannot be printed")
    return 0
