# cython: language_level=3
"""Ends the process with a message where mapped bytes of a file are gone.

The kernel sends SIGBUS to a thread that reads a page of a file which another process has cut. No
lock keeps a file from that, and looking at its size before leaves a moment between the two. Nothing
can be continued there, so the handler says which file it was and ends the process with exit code 2;
a SIGBUS anywhere else ends it as before.
"""

cdef extern from *:
    """
    #include <stddef.h>
    #ifndef _WIN32
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>

    enum { TPUDET_MAPS = 256 };  /* that are watched at once; any further ones are not */

    static struct {
        const unsigned char *start;
        size_t size;  /* 0: not in use */
        const char *message;
    } tpudet_maps[TPUDET_MAPS];
    static struct sigaction tpudet_before;
    static int tpudet_is_ready;

    static void tpudet_on_bus_error(int number, siginfo_t *info, void *context) {
        const unsigned char *place = (const unsigned char *)info->si_addr;
        for (int i = 0; i < TPUDET_MAPS; i++)
            if (tpudet_maps[i].size && place >= tpudet_maps[i].start
                && place - tpudet_maps[i].start < (ptrdiff_t)tpudet_maps[i].size) {
                const char *message = tpudet_maps[i].message;
                if (write(2, message, strlen(message)) < 0) { /* nobody listens */ }
                _exit(2);
            }
        sigaction(SIGBUS, &tpudet_before, NULL);  /* the read is tried again, and ends there */
    }

    static int tpudet_watch(const unsigned char *start, size_t size, const char *message) {
        struct sigaction action;
        if (!tpudet_is_ready) {
            memset(&action, 0, sizeof(action));
            action.sa_sigaction = tpudet_on_bus_error;
            action.sa_flags = SA_SIGINFO;
            tpudet_is_ready = sigaction(SIGBUS, &action, &tpudet_before) == 0;
        }
        for (int i = 0; i < TPUDET_MAPS; i++)
            if (!tpudet_maps[i].size) {
                tpudet_maps[i].start = start;
                tpudet_maps[i].message = message;
                tpudet_maps[i].size = size;
                return i;
            }
        return -1;
    }

    static void tpudet_unwatch(int number) {
        if (number >= 0)
            tpudet_maps[number].size = 0;
    }
    #else
    static int tpudet_watch(const unsigned char *start, size_t size, const char *message) {
        return -1;  /* Windows does not let a mapped file be cut */
    }
    static void tpudet_unwatch(int number) {}
    #endif
    """
    int watch "tpudet_watch" (const unsigned char* start, size_t size, const char* message)
    void unwatch "tpudet_unwatch" (int number)
