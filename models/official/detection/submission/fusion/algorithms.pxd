# cython: language_level=3
"""The fusion algorithms on the boxes of one class of one image, without Python objects.

What each of them computes is said, and stated once more in NumPy, in plain_fusion.py. Operations
and their order are the same in both, so results agree to the last bit.
"""

cimport cython
from libc.math cimport exp

cdef extern from *:
    """
    /* Areas that one box shares with boxes first..count-1, whose columns stand side by side, `room`
       apart: x1, y1, x2, y2; returns how many are above 0, and which. Without jumps: these would
       go either way, and the compiler takes several boxes at a time. */
    static int tpudet_intersect(const double *columns, int room, int first, int count, double x1,
                                 double y1, double x2, double y2, double *restrict shared,
                                 int *restrict hits) {
        const double *restrict left = columns, *restrict top = columns + room;
        const double *restrict right = columns + 2L * room, *restrict bottom = columns + 3L * room;
        int i, num_hits = 0;
        for (i = first; i < count; i++) {
            double width = (right[i] < x2 ? right[i] : x2) - (left[i] > x1 ? left[i] : x1);
            double height = (bottom[i] < y2 ? bottom[i] : y2) - (top[i] > y1 ? top[i] : y1);
            width = width > 0 ? width : 0;
            height = height > 0 ? height : 0;
            shared[i] = width * height;
        }
        for (i = first; i < count; i++) {
            hits[num_hits] = i;
            num_hits += shared[i] > 0;
        }
        return num_hits;
    }
    """
    int intersect "tpudet_intersect" (
        const double* columns, int room, int first, int count, double x1, double y1, double x2,
        double y2, double* shared, int* hits
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

cdef struct Room:  # for `room` boxes
    int room
    Key* keys
    Key* spare
    int* runs  # one more than `room`
    double* scores
    int* applied
    int* heap
    double* columns  # five of them: x1 y1 x2 y2 area
    double* shared
    int* hits
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
    """Sorts by falling score, equals in order.

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


@cython.cdivision(True)
cdef inline int suppress(
    const Box* boxes, const Key* keys, int count, const Settings* settings, Room* room, Box* results
) noexcept nogil:
    """Hard NMS and Soft-NMS; returns the number of results, which have falling scores.

    Lazily: scores only fall, so the results so far need to act on a box only when it is the best
    by what is known of its score. It is a result if it still is the best then; else it waits in a
    heap. Each box meets the results in their order, as if all had been decayed at each step.

    Args:
        keys: of the boxes, by falling score, equals in order.
        results: room for `count`.
    """
    cdef double* scores = room.scores
    cdef double* columns = room.columns
    cdef const double* areas = columns + 4 * <Py_ssize_t>room.room
    cdef int* heap = room.heap
    cdef int num_results = 0
    cdef int num_waiting = 0
    cdef int following = 0
    cdef int item, i, hit, num_hits
    cdef const Box* box
    cdef double score, overlap
    cdef double decay = -1 / settings.sigma
    for i in range(count):
        scores[i] = boxes[i].score
        room.applied[i] = 0
    while following < count or num_waiting:
        if num_waiting and (following == count or is_before(scores, heap[0], keys[following].item)):
            item = heap[0]
            num_waiting -= 1
            sift_down(scores, heap, num_waiting, heap[num_waiting])
        else:
            item = keys[following].item
            following += 1
        box = &boxes[item]
        score = scores[item]
        num_hits = intersect(columns, room.room, room.applied[item], num_results, box.x1, box.y1,
                             box.x2, box.y2, room.shared, room.hits)
        for hit in range(num_hits):
            i = room.hits[hit]
            overlap = room.shared[i] / (areas[i] + box.area - room.shared[i])
            if settings.method == SOFT_GAUSSIAN:
                score = score * exp(overlap * overlap * decay)
            elif overlap > settings.iou:
                score = score * (1 - overlap) if settings.method == SOFT_LINEAR else 0
            if score < settings.threshold or score <= 0:
                break
        if score < settings.threshold or score <= 0:
            continue
        scores[item] = score
        room.applied[item] = num_results
        if (following < count and is_before(scores, keys[following].item, item)) or (
            num_waiting and is_before(scores, heap[0], item)
        ):
            sift_up(scores, heap, num_waiting, item)
            num_waiting += 1
        else:
            results[num_results] = box[0]
            results[num_results].score = score
            set_columns(room, num_results, box)
            num_results += 1
    return num_results


cdef inline void set_columns(Room* room, int place, const Box* box) noexcept nogil:
    cdef double* columns = room.columns + place
    cdef Py_ssize_t apart = room.room
    columns[0] = box.x1
    columns[apart] = box.y1
    columns[2 * apart] = box.x2
    columns[3 * apart] = box.y2
    columns[4 * apart] = box.area


cdef inline bint is_before(const double* scores, int a, int b) noexcept nogil:
    return scores[a] > scores[b] or (scores[a] == scores[b] and a < b)


cdef inline void sift_up(const double* scores, int* heap, int place, int item) noexcept nogil:
    """Puts an item into a heap of `place` items."""
    cdef int parent
    while place:
        parent = (place - 1) >> 1
        if not is_before(scores, item, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = item


cdef inline void sift_down(const double* scores, int* heap, int count, int item) noexcept nogil:
    """Puts an item in the place of the first, in a heap of `count` items with it."""
    cdef int place = 0
    cdef int child = 1
    while child < count:
        if child + 1 < count and is_before(scores, heap[child + 1], heap[child]):
            child += 1
        if not is_before(scores, heap[child], item):
            break
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = item


@cython.cdivision(True)
cdef inline int fuse_clusters(
    const Box* boxes, const Key* keys, int count, const Settings* settings, double total_weight,
    Room* room, Box* results
) noexcept nogil:
    """WBF and NMW; returns the number of results, which have falling scores.

    Args:
        keys: of the boxes, by falling score, equals in order.
        total_weight: of all models, whether or not they have a box here.
        results: room for `count`.
    """
    cdef const double* areas = room.columns + 4 * <Py_ssize_t>room.room
    cdef int num_clusters = 0
    cdef int num_results = 0
    cdef int i, j, match, hit, num_hits
    cdef const Box* box
    cdef Cluster* cluster
    cdef double overlap, best
    for i in range(count):
        box = &boxes[keys[i].item]
        match = -1
        best = settings.iou
        num_hits = intersect(room.columns, room.room, 0, num_clusters, box.x1, box.y1, box.x2,
                             box.y2, room.shared, room.hits)
        for hit in range(num_hits):
            j = room.hits[hit]
            overlap = room.shared[j] / (areas[j] + box.area - room.shared[j])
            if overlap > best:
                best = overlap
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
