/* Preloaded into a program, it kills the program at a chosen change of a directory.
 *
 * KILL_UNDER is the directory's absolute path and KILL_AT the number of the change, from 0: a file
 * opened for writing, written to, cut, synchronized, renamed or removed, a directory made or
 * removed. A program that ends by itself says on stderr how many changes it made.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long changes;

static int is_under(const char *path) {
  const char *directory = getenv("KILL_UNDER");
  return directory && path && strncmp(path, directory, strlen(directory)) == 0;
}

static void change(void) {
  const char *at = getenv("KILL_AT");
  if (atomic_fetch_add(&changes, 1) == (at ? atol(at) : -1)) raise(SIGKILL);
}

static int fd_is_under(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_under(path);
}

__attribute__((destructor)) static void report(void) {
  if (getenv("KILL_UNDER") && changes) fprintf(stderr, "changes: %ld\n", (long)changes);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int rename(const char *old, const char *new) {
  if (is_under(new)) change();
  return REAL(rename)(old, new);
}

int unlink(const char *path) {
  if (is_under(path)) change();
  return REAL(unlink)(path);
}

int unlinkat(int directory, const char *path, int flags) {
  if (is_under(path) || fd_is_under(directory)) change();
  return REAL(unlinkat)(directory, path, flags);
}

int rmdir(const char *path) {
  if (is_under(path)) change();
  return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode) {
  if (is_under(path)) change();
  return REAL(mkdir)(path, mode);
}

#define OPEN(name)                                    \
  int name(const char *path, int flags, ...) {        \
    va_list arguments;                                \
    va_start(arguments, flags);                       \
    mode_t mode = va_arg(arguments, mode_t);          \
    va_end(arguments);                                \
    if ((flags & O_ACCMODE) != O_RDONLY && is_under(path)) change(); \
    return REAL(name)(path, flags, mode);             \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                   \
  FILE *name(const char *path, const char *mode) {    \
    if (mode[0] != 'r' && is_under(path)) change();   \
    return REAL(name)(path, mode);                    \
  }
FOPEN(fopen)
FOPEN(fopen64)

#define TRUNCATE(name, kind)                  \
  int name(const char *path, kind length) {   \
    if (is_under(path)) change();             \
    return REAL(name)(path, length);          \
  }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

int fsync(int fd) {
  if (fd_is_under(fd)) change();
  return REAL(fsync)(fd);
}

ssize_t write(int fd, const void *bytes, size_t count) {
  if (fd > 2 && fd_is_under(fd)) change();
  return REAL(write)(fd, bytes, count);
}

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
  if (fileno(file) > 2 && fd_is_under(fileno(file))) change();
  return REAL(fwrite)(bytes, size, count, file);
}

int fclose(FILE *file) {
  if (fileno(file) > 2 && fd_is_under(fileno(file))) change();
  return REAL(fclose)(file);
}
