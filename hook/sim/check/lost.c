/* lost.c: another process truncates the files of the device. The device is lost then, but the
 * program survives. Only the simulator has such files.
 *
 *   lost state     truncates the file that lists the processes on the device
 *   lost memory    truncates the file with shared memory
 *   lost grown     truncates the first file, which then grows again
 *   lost own       raises a SIGBUS that has nothing to do with the device */
#include "objects.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>

/* Truncates all files of the device whose names contain `part`, and then extends them to `regrown`.
 * Returns how many there are. */
static int cut(const char *part, off_t regrown)
{
    int count = 0;
    const char *dir = getenv("GFAAS_SIM_DIR");
    DIR *d = opendir(dir);
    CHECK(d != NULL);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, part) && truncate(path, 0) == 0 && truncate(path, regrown) == 0)
            count++;
    }
    if (d)
        closedir(d);
    return count;
}

static sigjmp_buf back;
static void caught(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

/* Checks that the program's own handler still gets a SIGBUS of the program. */
static int own(void)
{
    char name[] = "/tmp/lost.XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && !unlink(name) && !ftruncate(fd, 4096));
    volatile char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(signal(SIGBUS, caught) != SIG_ERR);
    new_context(first_device());
    CHECK(!ftruncate(fd, 0));
    if (!sigsetjmp(back, 1)) {
        *p = 1;
        CHECK(!"there is a page");
    }
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    return tap_end();
}

int main(int argc, char **argv)
{
    CUdeviceptr p, more;
    CUipcMemHandle handle;
    unsigned char bytes[64];
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "own"))
        return own();
    new_context(first_device());
    ASSERT_SUCCESS(cuMemAlloc(&p, 1 << 20));
    ASSERT_SUCCESS(cuMemsetD8(p, 7, 1 << 20));
    ASSERT_SUCCESS(cuIpcGetMemHandle(&handle, p)); /* now its file has a name */
    if (!strcmp(what, "memory")) {
        CHECK(cut(".mem.", 0) == 1);
        CHECK_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemcpyDtoH(bytes, p, sizeof bytes));
    } else {
        CHECK(cut(".state", strcmp(what, "grown") ? 0 : 1 << 20) == 1);
        CHECK_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemAlloc(&more, 1 << 20));
    }
    CHECK_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemAlloc(&more, 1 << 20));
    CHECK_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemsetD8(p, 8, 1 << 20));
    CHECK_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuCtxSynchronize());
    return tap_end();
}
