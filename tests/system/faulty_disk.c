/* A disk that fails on demand, for LD_PRELOAD.
 *
 * While the file $ATOLL_FAULTS exists, each of its lines "CALL ERRNO PART" makes CALL (sync, write or open; open: for
 * writing) fail with ERRNO on files whose path contains PART. Nothing else is changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int fault_of(const char *call, const char *path)
{
    const char *faults = getenv("ATOLL_FAULTS");
    char name[16], part[256];
    int number, found = 0;
    FILE *file;
    if (!faults || access(faults, R_OK) || !(file = fopen(faults, "re")))
        return 0;
    while (!found && fscanf(file, "%15s %d %255s", name, &number, part) == 3)
        if (!strcmp(name, call) && strstr(path, part))
            found = number;
    fclose(file);
    return found;
}

static int fails(const char *call, int descriptor)
{
    char link[64], path[4096];
    int saved = errno, number;
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    number = size < 0 ? 0 : fault_of(call, path);
    errno = number ? number : saved;
    return number != 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int d) { return fails("sync", d) ? -1 : REAL(fsync)(d); }
int fdatasync(int d) { return fails("sync", d) ? -1 : REAL(fdatasync)(d); }
ssize_t write(int d, const void *p, size_t n) { return fails("write", d) ? -1 : REAL(write)(d, p, n); }
ssize_t pwrite(int d, const void *p, size_t n, off_t o) { return fails("write", d) ? -1 : REAL(pwrite)(d, p, n, o); }
ssize_t pwrite64(int d, const void *p, size_t n, off64_t o) { return fails("write", d) ? -1 : REAL(pwrite64)(d, p, n, o); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        mode_t mode = 0; \
        int number = flags & (O_WRONLY | O_RDWR | O_CREAT) ? fault_of("open", path) : 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        if (number) { \
            errno = number; \
            return -1; \
        } \
        return REAL(name)(path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
