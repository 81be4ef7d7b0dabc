# cython: language_level=3
"""The fusion algorithms on the boxes of one class of one image, without Python objects.

What each of them computes is said, and stated once more in NumPy, in plain_fusion.py. Operations
and their order are the same in both, so results agree to the last bit.
"""

cimport cython
from libc.math cimport exp

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
    #define TPUDET_WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
    #else
    #define TPUDET_WIDE
    #endif
    enum { TPUDET_LANES = 8 };  /* boxes that are compared at a time: arrays have as many to spare */

    /* IoU of one box with `count` boxes, whose columns stand side by side, `room` apart: x1, y1,
       x2, y2, area. 0 or not a number where the two share no area. Without jumps, which would go
       either way, and in whole groups: the compiler takes the boxes of one at a time. */
    TPUDET_WIDE static void tpudet_overlaps(
        const double *columns, int room, int count, double x1, double y1, double x2, double y2,
        double area, double *restrict overlaps)
    {
        const double *left = columns, *top = left + room, *right = top + room;
        const double *bottom = right + room, *areas = bottom + room;
        for (int first = 0; first < count; first += TPUDET_LANES) {
            for (int i = first; i < first + TPUDET_LANES; i++) {
                double width = (right[i] < x2 ? right[i] : x2) - (left[i] > x1 ? left[i] : x1);
                double height = (bottom[i] < y2 ? bottom[i] : y2) - (top[i] > y1 ? top[i] : y1);
                double shared = (width > 0 ? width : 0) * (height > 0 ? height : 0);
                overlaps[i] = shared / (areas[i] + area - shared);
            }
        }
    }
    """
    enum:
        LANES "TPUDET_LANES"
    void find_overlaps "tpudet_overlaps" (
        const double* columns, int room, int count, double x1, double y1, double x2, double y2,
        double area, double* overlaps
    ) noexcept nogil

cdef enum:  # plain_fusion.METHODS in order
    HARD = 0
    SOFT_LINEAR = 1
    SOFT_GAUSSIAN = 2
    WBF = 3
    NMW = 4

cdef struct Box:
    double x1
    double y1
    double x2
    double y2
    double area
    double score  # times the weight of the model
    double weight
    const unsigned char* text  # the coordinates as they shall be printed; NULL: from the numbers

cdef struct Key:
    double score
    int item

cdef struct Cluster:
    Box box  # WBF: the fused box so far; NMW: the best box
    double sums[4]
    double sum_score
    double sum_weight
    int count

cdef struct Settings:
    int method
    double iou
    double sigma
    double threshold

cdef struct Room:  # for `room` boxes, and LANES more in columns and overlaps
    int room
    Key* keys
    Key* spare
    int* runs  # one more than `room`
    double* columns  # five of them: x1 y1 x2 y2 area
    double* overlaps
    double* scores
    int* items
    Cluster* clusters


@cython.cdivision(True)
cdef inline bint place_keys(const Key* keys, Key* spare, int* ends, int count) noexcept nogil:
    """Copies keys into as many classes of equal width as there are keys, highest scores first.

    False where that would not help: scores all equal, or far more of them in some classes.

    Args:
        ends: one more than `count`; holds numbers of keys, then where each class ends.
    """
    cdef double low = keys[0].score
    cdef double high = low
    cdef double scale
    cdef long long num_pairs = 0
    cdef int i, place, size
    for i in range(count):
        low = keys[i].score if keys[i].score < low else low
        high = keys[i].score if keys[i].score > high else high
    scale = (count - 1) / (high - low) if high > low else 1e300
    if not scale < 1e300:
        return False
    for i in range(count + 1):
        ends[i] = 0
    for i in range(count):
        ends[<int>((high - keys[i].score) * scale)] += 1
    place = 0
    for i in range(count):
        size = ends[i]
        num_pairs += <long long>size * size
        ends[i] = place
        place += size
    if num_pairs > 8 * <long long>count:
        return False
    for i in range(count):
        place = <int>((high - keys[i].score) * scale)
        spare[ends[place]] = keys[i]
        ends[place] += 1
    return True


cdef inline void sort_falling(Key* keys, Key* spare, int* runs, int count) noexcept nogil:
    """Sorts in descending order of score, equals in order.

    Many are placed roughly by their score and then moved by a few places; where that is no help,
    or where they are few, the runs that are there already are merged.
    """
    cdef int num_runs = 0
    cdef int first, middle, last, i, j, k, run, kept
    cdef size_t right, chosen
    if count == 0:
        return  # there may be no memory yet
    for i in range(count):
        if i == 0 or keys[i].score > keys[i - 1].score:
            runs[num_runs] = i
            num_runs += 1
    runs[num_runs] = count
    if num_runs > 4 and place_keys(keys, spare, runs, count):
        for i in range(count):
            j = i
            while j and keys[j - 1].score < spare[i].score:
                keys[j] = keys[j - 1]
                j -= 1
            keys[j] = spare[i]
        return
    if num_runs > 4:
        num_runs = 0  # they were written over
        for i in range(count):
            if i == 0 or keys[i].score > keys[i - 1].score:
                runs[num_runs] = i
                num_runs += 1
        runs[num_runs] = count
    while num_runs > 1:
        kept = 0
        run = 0
        while run < num_runs:
            first = runs[run]
            runs[kept] = first
            kept += 1
            if run + 1 < num_runs:
                middle = runs[run + 1]
                last = runs[run + 2]
                for i in range(first, middle):
                    spare[i] = keys[i]
                i = first
                j = middle
                k = first
                while i < middle and j < last:  # no jump: either may come next, at even chances
                    right = <size_t>(keys[j].score > spare[i].score)
                    chosen = (<size_t>&spare[i] & (right - 1)) | (<size_t>&keys[j] & (0 - right))
                    keys[k] = (<Key*>chosen)[0]
                    j += <int>right
                    i += 1 - <int>right
                    k += 1
                while i < middle:
                    keys[k] = spare[i]
                    i += 1
                    k += 1
            run += 2
        runs[kept] = count
        num_runs = kept


cdef inline void sort_boxes(const Box* boxes, Room* room, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        room.keys[i].score = boxes[i].score
        room.keys[i].item = i
    sort_falling(room.keys, room.spare, room.runs, count)


cdef inline int suppress(
    const Box* boxes, const int* items, int count, const Settings* settings, Room* room,
    Box* results
) noexcept nogil:
    """Hard NMS and Soft-NMS; returns the number of results, which are in descending order of score.

    Args:
        items: the boxes to take, equal scores in the order of the input.
        count: of items.
        results: room for `count`.
    """
    cdef double* scores = room.scores
    cdef int num_results = 0
    cdef int num_left = count
    cdef int best = 0
    cdef int i
    cdef const Box* box
    cdef double score, highest, overlap
    cdef double decay = -1 / settings.sigma
    for i in range(count):
        box = &boxes[items[i]]
        set_columns(room, i, box)
        scores[i] = box.score
        room.items[i] = items[i]
        if scores[i] > scores[best]:
            best = i
    while num_left:
        box = &boxes[room.items[best]]
        results[num_results] = box[0]
        results[num_results].score = scores[best]
        num_results += 1
        num_left -= 1
        scores[best] = 0  # it is no longer among those left, as others that fall too low
        find_overlaps(room.columns, room.room, count, box.x1, box.y1, box.x2, box.y2, box.area,
                      room.overlaps)
        best = 0
        highest = 0
        for i in range(count):
            score = scores[i]
            overlap = room.overlaps[i]
            if overlap > 0 and score > 0:
                if settings.method == SOFT_GAUSSIAN:
                    score = score * exp(overlap * overlap * decay)
                elif overlap > settings.iou:
                    score = score * (1 - overlap) if settings.method == SOFT_LINEAR else 0
                if score < settings.threshold or score <= 0:
                    score = 0
                    num_left -= 1
                scores[i] = score
            if score > highest:
                highest = score
                best = i
        if 2 * num_left < count:
            best = close_gaps(room, count, best)
            count = num_left
    return num_results


cdef inline int close_gaps(Room* room, int count, int best) noexcept nogil:
    """Moves the boxes with a score together, in their order; returns where `best` is then."""
    cdef int kept = 0
    cdef int i, column
    cdef double* columns
    for i in range(count):
        if room.scores[i] > 0:
            if i == best:
                best = kept
            room.scores[kept] = room.scores[i]
            room.items[kept] = room.items[i]
            columns = room.columns
            for column in range(5):
                columns[kept] = columns[i]
                columns += room.room
            kept += 1
    return best


cdef inline void set_columns(Room* room, int place, const Box* box) noexcept nogil:
    cdef double* columns = room.columns + place
    cdef Py_ssize_t apart = room.room
    columns[0] = box.x1
    columns[apart] = box.y1
    columns[2 * apart] = box.x2
    columns[3 * apart] = box.y2
    columns[4 * apart] = box.area


@cython.cdivision(True)
cdef inline int fuse_clusters(
    const Box* boxes, const int* items, int count, const Settings* settings, double total_weight,
    Room* room, Box* results
) noexcept nogil:
    """WBF and NMW; returns the number of results, which are in descending order of score.

    Args:
        items: the boxes to take, in descending order of score, equals in order.
        count: of items.
        total_weight: of all models, whether or not they have a box here.
        results: room for `count`.
    """
    cdef int num_clusters = 0
    cdef int num_results = 0
    cdef int i, j, match
    cdef const Box* box
    cdef Cluster* cluster
    cdef double best
    for i in range(count):
        box = &boxes[items[i]]
        best = settings.iou
        match = -1
        find_overlaps(room.columns, room.room, num_clusters, box.x1, box.y1, box.x2, box.y2,
                      box.area, room.overlaps)
        for j in range(num_clusters):
            if room.overlaps[j] > best:
                best = room.overlaps[j]
                match = j
        if match < 0:
            match = num_clusters
            cluster = &room.clusters[match]
            num_clusters += 1
            cluster.box = box[0]
            cluster.count = 0
            cluster.sum_score = cluster.sum_weight = 0
            cluster.sums[0] = cluster.sums[1] = cluster.sums[2] = cluster.sums[3] = 0
            add_to_cluster(cluster, box, box.score)
            set_columns(room, match, box)
        else:
            cluster = &room.clusters[match]
            add_to_cluster(cluster, box, box.score if settings.method == WBF else box.score * best)
            if settings.method == WBF:
                set_to_mean(&cluster.box, cluster)
                set_columns(room, match, &cluster.box)
    for j in range(num_clusters):
        cluster = &room.clusters[j]
        if settings.method == WBF:
            best = cluster.sum_weight if cluster.sum_weight > total_weight else total_weight
            cluster.box.score = cluster.sum_score / best
        elif cluster.count > 1:
            set_to_mean(&cluster.box, cluster)
        room.keys[j].score = cluster.box.score
        room.keys[j].item = j
    sort_falling(room.keys, room.spare, room.runs, num_clusters)
    for j in range(num_clusters):
        cluster = &room.clusters[room.keys[j].item]
        if cluster.box.score >= settings.threshold:
            results[num_results] = cluster.box
            num_results += 1
    return num_results


cdef inline void add_to_cluster(Cluster* cluster, const Box* box, double share) noexcept nogil:
    cluster.sums[0] += share * box.x1
    cluster.sums[1] += share * box.y1
    cluster.sums[2] += share * box.x2
    cluster.sums[3] += share * box.y2
    cluster.sum_score += share
    cluster.sum_weight += box.weight
    cluster.count += 1


@cython.cdivision(True)
cdef inline void set_to_mean(Box* box, const Cluster* cluster) noexcept nogil:
    box.x1 = cluster.sums[0] / cluster.sum_score
    box.y1 = cluster.sums[1] / cluster.sum_score
    box.x2 = cluster.sums[2] / cluster.sum_score
    box.y2 = cluster.sums[3] / cluster.sum_score
    box.area = (box.x2 - box.x1) * (box.y2 - box.y1)
    box.text = NULL
