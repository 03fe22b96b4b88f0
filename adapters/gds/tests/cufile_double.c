/* A double of cuFile's six functions: "device memory" is the process's own, and every rule is kept.
 *
 * The rules are those of cufile.h: the driver is opened first; a file is registered, once, and only
 * if it is open for direct I/O and with no flag that the library refuses; memory is registered before it is read into, once; a read stays
 * within its registration. What breaks one gets the number that cuFile has for it. Reads that are not
 * aligned are counted: cuFile takes them through a buffer of its own, which is what they are not for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct { int err; int cu_err; } Error;
typedef struct { int type; union { int fd; void *handle; } handle; const void *fs_ops; } Descr;

enum { OPEN, HANDLE, UNHANDLE, BUF, UNBUF, READ, FUNCTIONS };
enum { MOST = 256 };
/* What the library of CUDA 13.0 answered with 5019 on an H200. */
enum { REFUSED = O_NOFOLLOW | O_NONBLOCK | O_TMPFILE };
/* Says that it read, and did not; says more than it was asked for; flips a bit; reads elsewhere. */
enum { TRUTH, NOTHING, MORE, FLIPPED, ELSEWHERE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int opened, failing[FUNCTIONS], calls[FUNCTIONS], unaligned, broken;
static size_t shortest;
static int stalled, lie, waiting;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct { int used, fd; } files[MOST];
static struct { const char *base; size_t size; } rooms[MOST];

/* What the tests say and ask. */
void double_fail(int function, int number) { failing[function] = number; }
void double_short(size_t bytes) { shortest = bytes; }
void double_lie(int how) { lie = how; }
void double_stall(int on) {
    pthread_mutex_lock(&lock);
    stalled = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
int double_waiting(void) { return waiting; }
int double_calls(int function) { return calls[function]; }
int double_unaligned(void) { return unaligned; }
int double_broken(void) { return broken; }
int double_held(int buffers) {
    int count = 0;
    for (int i = 0; i < MOST; i++) count += buffers ? rooms[i].size != 0 : files[i].used;
    return count;
}

static Error refused(int number) { broken++; return (Error){number, 0}; }

Error cuFileDriverOpen(void) {
    pthread_mutex_lock(&lock);
    calls[OPEN]++;
    Error error = {failing[OPEN], failing[OPEN] == 5011 ? 100 : 0};
    if (!error.err) error.err = opened ? 5026 : 0;
    if (!error.err) opened = 1;
    pthread_mutex_unlock(&lock);
    return error;
}

Error cuFileHandleRegister(void **handle, const Descr *descr) {
    pthread_mutex_lock(&lock);
    calls[HANDLE]++;
    Error error = {failing[HANDLE], 0};
    int flags = fcntl(descr->handle.fd, F_GETFL), place = -1;
    if (error.err) goto out;
    error = !opened ? refused(5001) : descr->type != 1 ? refused(5018) : flags < 0 ? refused(5022)
          : flags & REFUSED ? refused(5019) : !(flags & O_DIRECT) ? refused(5020) : error;
    for (int i = MOST - 1; i >= 0 && !error.err; i--) {
        if (files[i].used && files[i].fd == descr->handle.fd) error = refused(5028);
        if (!files[i].used) place = i;
    }
    if (!error.err) {
        files[place].used = 1;
        files[place].fd = descr->handle.fd;
        *handle = &files[place];
    }
out:
    pthread_mutex_unlock(&lock);
    return error;
}

static int of_file(void *handle) {
    for (int i = 0; i < MOST; i++)
        if (handle == &files[i] && files[i].used) return i;
    return -1;
}

void cuFileHandleDeregister(void *handle) {
    pthread_mutex_lock(&lock);
    calls[UNHANDLE]++;
    int i = of_file(handle);
    if (i < 0) broken++; else files[i].used = 0;
    pthread_mutex_unlock(&lock);
}

static int of_room(const void *base) {
    for (int i = 0; i < MOST; i++)
        if (rooms[i].size && rooms[i].base == base) return i;
    return -1;
}

Error cuFileBufRegister(const void *base, size_t size, int flags) {
    pthread_mutex_lock(&lock);
    calls[BUF]++;
    Error error = {failing[BUF], 0};
    if (!error.err)
        error = !opened ? refused(5001) : flags || !size || (uintptr_t)base % 4096 ? refused(5022)
              : of_room(base) >= 0 ? refused(5023) : error;
    for (int i = 0; i < MOST && !error.err; i++)
        if (!rooms[i].size) { rooms[i].base = base; rooms[i].size = size; break; }
    pthread_mutex_unlock(&lock);
    return error;
}

Error cuFileBufDeregister(const void *base) {
    pthread_mutex_lock(&lock);
    calls[UNBUF]++;
    int i = of_room(base);
    Error error = {failing[UNBUF], 0};
    if (!error.err) error = i < 0 ? refused(5024) : error;
    if (!error.err) rooms[i].size = 0;
    pthread_mutex_unlock(&lock);
    return error;
}

ssize_t cuFileRead(void *handle, void *base, size_t size, off_t from, off_t at) {
    pthread_mutex_lock(&lock);
    calls[READ]++;
    int file = of_file(handle), room = of_room(base), number = failing[READ];
    if (!number) {
        number = !opened ? 5001 : file < 0 ? 5027 : room < 0 ? 5024
               : at < 0 || (size_t)at + size > rooms[room].size ? 5014 : 0;
        broken += number != 0;
    }
    unaligned += from % 4096 || at % 4096;
    int fd = file < 0 ? -1 : files[file].fd;
    if (shortest && size > shortest) size = shortest;
    waiting++;
    while (stalled) pthread_cond_wait(&changed, &lock);
    waiting--;
    int how = lie;
    pthread_mutex_unlock(&lock);
    if (number > 0 && number < 5000) { errno = number; return -1; }
    if (number) return -number;
    if (how == NOTHING) return size;
    char name[64];  /* at any length, as cuFile reads: through a file that is not direct */
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int plain = open(name, O_RDONLY | O_CLOEXEC);
    if (plain < 0) return -1;
    ssize_t got = pread(plain, (char *)base + at, size, how == ELSEWHERE ? from + 4096 : from);
    close(plain);
    if (how == FLIPPED && got > 0) ((char *)base)[at + got / 2] ^= 4;
    if (how == ELSEWHERE && got >= 0) got = size;
    return how == MORE ? got + 4096 : got;
}
