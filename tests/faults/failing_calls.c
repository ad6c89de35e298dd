/* Stands before the C library's calls to the file system, and lets the n-th of them fail once it is armed, or all
   that are made of one folder, as if its file system had gone away.

   cc -shared -fPIC -o failing_calls.so failing_calls.c -ldl; then start a program with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST_NAMES 10000

static int armed, seen, fails_at, fails_with;
static pthread_t who;
static const char *last = "";

/* Count the calls of one thread from now on: of the first that calls `follow`, and of the arming one until then.
   Let number `at` fail with `code`, or write one byte if that is 0. */
static const char *names[MOST_NAMES];
static void mark(const char *text) { syscall(SYS_faccessat, AT_FDCWD, text, F_OK); } /* for who traces the process */
void arm(int at, int code) { seen = 0; fails_at = at; fails_with = code; who = pthread_self(); mark("/armed"); armed = 1; }
void follow(void) { who = pthread_self(); if (armed) mark("/armed"); }
int disarm(void) { armed = 0; mark("/disarmed"); return seen; }
const char *failed_call(void) { return last; }
const char *call_name(int at) { return at >= 1 && at <= seen && at <= MOST_NAMES ? names[at - 1] : ""; }

static int is_due(const char *name)
{
    if (!armed || !pthread_equal(who, pthread_self()))
        return 0;
    if (seen < MOST_NAMES)
        names[seen] = name;
    if (++seen != fails_at)
        return 0;
    last = name;
    return 1;
}

static char away[4096];
static int is_away, away_with;

/* Let every call of every thread fail that is made of a folder, its absolute path, or of what is in it. */
void go_away(const char *folder, int code) { strncpy(away, folder, sizeof away - 1); away_with = code; is_away = 1; }
void come_back(void) { is_away = 0; }
__attribute__((constructor)) static void begin(void)
{
    if (getenv("STALE_FOLDER")) go_away(getenv("STALE_FOLDER"), ESTALE); /* from the start on */
}

static int is_in(const char *path)
{
    size_t length = strlen(away);
    return path && !strncmp(path, away, length) && (!path[length] || path[length] == '/');
}
static int path_is_away(const char *path) { return is_away && is_in(path); }
static int file_is_away(int file)
{
    char name[40], path[4096];
    if (!is_away) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_in(path);
}
#define AWAY_PATH(path) if (path_is_away(path)) { errno = away_with; return -1; }
#define AWAY_FILE(file) if (file_is_away(file)) { errno = away_with; return -1; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(name) if (is_due(#name) && fails_with) { errno = fails_with; return -1; }
#define FAIL_NULL(name) if (is_due(#name) && fails_with) { errno = fails_with; return NULL; }

#define OPEN(name, head, given) \
    int name(head, int flags, ...) \
    { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        int (*real)(head, int, ...) = (int (*)(head, int, ...))dlsym(RTLD_NEXT, #name); \
        AWAY_PATH(path) \
        FAIL(name) \
        return real(given, flags, mode); \
    }
#define COMMA ,
int open(const char *, int, ...);
OPEN(open, const char *path, path)
OPEN(open64, const char *path, path)
OPEN(openat, int folder COMMA const char *path, folder COMMA path)
OPEN(openat64, int folder COMMA const char *path, folder COMMA path)

ssize_t write(int file, const void *bytes, size_t count)
{
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    AWAY_FILE(file)
    if (is_due("write")) {
        if (fails_with) { errno = fails_with; return -1; }
        if (count > 1) count = 1;
    }
    return real(file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    AWAY_FILE(file)
    if (is_due("pwrite")) {
        if (fails_with) { errno = fails_with; return -1; }
        if (count > 1) count = 1;
    }
    return real(file, bytes, count, at);
}

ssize_t read(int file, void *bytes, size_t count)
{
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "read");
    AWAY_FILE(file)
    FAIL(read)
    return real(file, bytes, count);
}

int fcntl64(int file, int command, ...)
{
    va_list more; va_start(more, command); void *argument = va_arg(more, void *); va_end(more);
    int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
    AWAY_FILE(file)
    FAIL(fcntl)
    return real(file, command, argument);
}

int fsync(int file) { int (*real)(int) = dlsym(RTLD_NEXT, "fsync"); AWAY_FILE(file) FAIL(fsync) return real(file); }
int close(int file) { int (*real)(int) = dlsym(RTLD_NEXT, "close"); int done = real(file); FAIL(close) return done; }
int rename(const char *a, const char *b) { int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename"); AWAY_PATH(a) FAIL(rename) return real(a, b); }
int link(const char *a, const char *b) { int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "link"); AWAY_PATH(a) FAIL(link) return real(a, b); }
int linkat(int a, const char *b, int c, const char *d, int e) { int (*real)(int, const char *, int, const char *, int) = dlsym(RTLD_NEXT, "linkat"); AWAY_PATH(b) AWAY_PATH(d) FAIL(linkat) return real(a, b, c, d, e); }
int mkdir(const char *a, mode_t b) { int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir"); AWAY_PATH(a) FAIL(mkdir) return real(a, b); }
int unlink(const char *a) { int (*real)(const char *) = dlsym(RTLD_NEXT, "unlink"); AWAY_PATH(a) FAIL(unlink) return real(a); }
int unlinkat(int a, const char *b, int c) { int (*real)(int, const char *, int) = dlsym(RTLD_NEXT, "unlinkat"); AWAY_PATH(b) AWAY_FILE(a) FAIL(unlinkat) return real(a, b, c); }
int rmdir(const char *a) { int (*real)(const char *) = dlsym(RTLD_NEXT, "rmdir"); AWAY_PATH(a) FAIL(rmdir) return real(a); }
off64_t lseek64(int a, off64_t b, int c) { off64_t (*real)(int, off64_t, int) = dlsym(RTLD_NEXT, "lseek64"); AWAY_FILE(a) FAIL(lseek) return real(a, b, c); }
struct dirent64 *readdir64(DIR *a) { struct dirent64 *(*real)(DIR *) = dlsym(RTLD_NEXT, "readdir64"); FAIL_NULL(readdir) return real(a); }
int ftruncate64(int a, off64_t b) { int (*real)(int, off64_t) = dlsym(RTLD_NEXT, "ftruncate64"); AWAY_FILE(a) FAIL(ftruncate) return real(a, b); }
int stat64(const char *a, struct stat64 *b) { int (*real)(const char *, struct stat64 *) = dlsym(RTLD_NEXT, "stat64"); AWAY_PATH(a) FAIL(stat) return real(a, b); }
int lstat64(const char *a, struct stat64 *b) { int (*real)(const char *, struct stat64 *) = dlsym(RTLD_NEXT, "lstat64"); AWAY_PATH(a) FAIL(lstat) return real(a, b); }
int fstat64(int a, struct stat64 *b) { int (*real)(int, struct stat64 *) = dlsym(RTLD_NEXT, "fstat64"); AWAY_FILE(a) FAIL(fstat) return real(a, b); }
int fstatat64(int a, const char *b, struct stat64 *c, int d) { int (*real)(int, const char *, struct stat64 *, int) = dlsym(RTLD_NEXT, "fstatat64"); AWAY_PATH(b) AWAY_FILE(a) FAIL(fstatat) return real(a, b, c, d); }
DIR *opendir(const char *a) { DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir"); if (path_is_away(a)) { errno = away_with; return NULL; } FAIL_NULL(opendir) return real(a); }
DIR *fdopendir(int a) { DIR *(*real)(int) = dlsym(RTLD_NEXT, "fdopendir"); FAIL_NULL(fdopendir) return real(a); }
int utimensat(int a, const char *b, const struct timespec c[2], int d) { int (*real)(int, const char *, const struct timespec *, int) = dlsym(RTLD_NEXT, "utimensat"); AWAY_PATH(b) FAIL(utimensat) return real(a, b, c, d); }
int access(const char *a, int b) { int (*real)(const char *, int) = dlsym(RTLD_NEXT, "access"); AWAY_PATH(a) FAIL(access) return real(a, b); }
