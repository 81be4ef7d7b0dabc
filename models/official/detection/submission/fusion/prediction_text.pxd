# cython: language_level=3
"""Predictions `LABEL score x1 y1 x2 y2` in text, without Python objects; see prediction_text.pyx."""

cimport cython
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from tpudet.detection.submission.fusion.label_table cimport LabelTable, number_of
from tpudet.detection.submission.fusion.number_text cimport (
    LARGEST,
    LONGEST_PRINTED,
    MAX_DECIMALS,
    is_blank,
    parse_number,
    print_number,
    token_end,
)

cdef enum:  # what is wrong with a row; `submission.errors` has the words
    FINE = 0
    TOKENS = 1
    NUMBER = 2
    SCORE = 3
    BOX = 4
    LABEL = 5
    NO_MEMORY = 100
    LONGEST_LABEL = 255
    USUAL_BOX = 31  # characters of four numbers 0.ddddd with a blank between each

cdef struct Prediction:
    const unsigned char* label
    int label_length
    double score
    double box[4]  # x1 y1 x2 y2
    const unsigned char* box_text  # USUAL_BOX bytes that printing the box gives; NULL: none known

cdef struct Text:  # grows; `data` belongs to whoever made it
    unsigned char* data
    Py_ssize_t size
    Py_ssize_t capacity

cdef struct Columns:  # those of blocks.ScannedRows
    int* files
    long long* starts
    int* lengths
    int* numbers
    double* scores
    double* boxes
    Py_ssize_t count

cdef class Sources:
    cdef list kept
    cdef const unsigned char** data
    cdef Py_ssize_t* sizes
    cdef int count
    cdef int check(self, const long long[::1] files, const long long[::1] starts,
                   const long long[::1] stops) except -1


cdef inline const unsigned char* skip_blanks(
    const unsigned char* text, const unsigned char* stop
) noexcept nogil:
    while text < stop and is_blank(text[0]):
        text += 1
    return text


cdef inline int scan_prediction(
    const unsigned char** cursor, const unsigned char* stop, Prediction* found
) noexcept nogil:
    """Reads one prediction, `cursor` at its label; FINE and behind it, else where the fault is."""
    cdef const unsigned char* text = cursor[0]
    cdef const unsigned char* end = text
    cdef const unsigned char* box_text = NULL
    cdef int num_usual = 0
    cdef int i
    while end < stop and not is_blank(end[0]):
        if end[0] <= 34 or end[0] == 44 or end[0] == 127:  # a quote or a comma would not be read
            if end[0] != 33:  # as it was written; nor do control characters belong in a label
                return LABEL
        end += 1
    if end - text > LONGEST_LABEL:
        return LABEL
    found.label = text
    found.label_length = <int>(end - text)
    for i in range(5):
        end = skip_blanks(end, stop)
        cursor[0] = end
        if end == stop:
            return TOKENS
        if i == 1:
            box_text = end
            num_usual = 0
        if not parse_number(&end, stop, &found.score if i == 0 else &found.box[i - 1], &num_usual):
            return NUMBER
        if i == 0:
            if not 0 <= found.score <= 1:
                return SCORE
        elif not -LARGEST <= found.box[i - 1] <= LARGEST:
            return NUMBER
    if found.box[2] < found.box[0] or found.box[3] < found.box[1]:
        cursor[0] = text
        return BOX
    found.box_text = box_text if num_usual == 4 and end - box_text == USUAL_BOX else NULL
    cursor[0] = end
    return FINE


cdef inline int count_tokens(const unsigned char* text, const unsigned char* stop) noexcept nogil:
    cdef int count = 0
    text = skip_blanks(text, stop)
    while text < stop:
        count += 1
        text = skip_blanks(token_end(text, stop), stop)
    return count


cdef inline bint reserve(Text* text, Py_ssize_t extra) noexcept nogil:
    """Makes room for `extra` more bytes; False: no memory."""
    cdef unsigned char* data
    cdef Py_ssize_t capacity
    if text.size + extra <= text.capacity:
        return True
    capacity = 2 * text.capacity + extra + 4096
    data = <unsigned char*>realloc(text.data, capacity)
    if data == NULL:
        return False
    text.data = data
    text.capacity = capacity
    return True


cdef inline bint print_prediction(
    Text* text, const Prediction* given, int score_decimals, int box_decimals, bint blank_before
) noexcept nogil:
    cdef unsigned char* out
    cdef int i
    if not reserve(text, given.label_length + 5 * (LONGEST_PRINTED + 1) + 1):
        return False
    out = text.data + text.size
    if blank_before:
        out[0] = 32
        out += 1
    memcpy(out, given.label, given.label_length)
    out += given.label_length
    out[0] = 32
    out = print_number(out + 1, given.score, score_decimals)
    if given.box_text != NULL and box_decimals == 5:
        out[0] = 32
        memcpy(out + 1, given.box_text, USUAL_BOX)
        text.size = out + 1 + USUAL_BOX - text.data
        return True
    for i in range(4):
        out[0] = 32
        out = print_number(out + 1, given.box[i], box_decimals)
    text.size = out - text.data
    return True


cdef inline bint print_bytes(
    Text* text, const unsigned char* data, Py_ssize_t size
) noexcept nogil:
    if not reserve(text, size):
        return False
    memcpy(text.data + text.size, data, size)
    text.size += size
    return True


cdef inline bint print_id(Text* text, const unsigned char* image_id, Py_ssize_t size) noexcept nogil:
    return print_bytes(text, image_id, size) and print_bytes(text, b",", 1)


@cython.cdivision(True)
cdef inline int final_fault(
    int fault, const unsigned char* text, const unsigned char* stop
) noexcept nogil:
    """A missing token makes the next label look like a wrong number: say what is missing."""
    return TOKENS if fault != LABEL and count_tokens(text, stop) % 6 else fault


cdef inline int scan_piece(
    int file, const unsigned char* base, long long start, long long end, LabelTable* table,
    Columns* columns, long long* position
) noexcept nogil:
    """Adds the predictions of a piece, or none: then it returns the fault and says where it is."""
    cdef const unsigned char* text = base + start
    cdef const unsigned char* stop = base + end
    cdef Py_ssize_t first = columns.count
    cdef Py_ssize_t count = first
    cdef Prediction found
    cdef int i, fault
    text = skip_blanks(text, stop)
    while text < stop:
        fault = scan_prediction(&text, stop, &found)
        if fault != FINE:
            position[0] = text - base
            columns.count = first
            return final_fault(fault, base + start, stop)
        columns.files[count] = file
        columns.starts[count] = found.label - base
        columns.lengths[count] = found.label_length
        columns.numbers[count] = -1
        if table.count:
            columns.numbers[count] = number_of(table, found.label, found.label_length, False)
        columns.scores[count] = found.score
        for i in range(4):
            columns.boxes[4 * count + i] = found.box[i]
        count += 1
        text = skip_blanks(text, stop)
    columns.count = count
    return FINE
