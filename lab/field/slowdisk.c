/* Preloaded into a server: its disk takes as many milliseconds to sync as SLOWDISK says. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void dawdle(void) {
  const char *text = getenv("SLOWDISK");
  long ms = text ? atol(text) : 0;
  struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

int fsync(int file) {
  dawdle();
  return syscall(SYS_fsync, file);
}

int fdatasync(int file) {
  dawdle();
  return syscall(SYS_fdatasync, file);
}
