/* lost.c: another process cuts the files of the device short. The device is gone
 * then, and the program is not. Only the simulator has such files.
 *
 *   lost state     the file with who is on the device
 *   lost memory    the file with memory that was handed on
 *   lost grown     the first, and it grows again
 *   lost own       a SIGBUS that has nothing to do with it */
#include "tap.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>

/* Cuts all files of the device's short whose names have that in them. */
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

/* A SIGBUS of the program's own goes where it went before. */
static int own(void)
{
    CUcontext ctx;
    char name[] = "/tmp/lost.XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && !unlink(name) && !ftruncate(fd, 4096));
    volatile char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(signal(SIGBUS, caught) != SIG_ERR);
    MUST(cuCtxCreate(&ctx, 0, first_device()));
    CHECK(!ftruncate(fd, 0));
    if (!sigsetjmp(back, 1)) {
        *p = 1;
        CHECK(!"there is a page");
    }
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    return tap_end();
}

int main(int argc, char **argv)
{
    CUcontext ctx;
    CUdeviceptr p, more;
    CUipcMemHandle handle;
    unsigned char bytes[64];
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "own"))
        return own();
    MUST(cuCtxCreate(&ctx, 0, first_device()));
    MUST(cuMemAlloc(&p, 1 << 20));
    MUST(cuMemsetD8(p, 7, 1 << 20));
    MUST(cuIpcGetMemHandle(&handle, p)); /* its file has a name now */
    if (!strcmp(what, "memory")) {
        CHECK(cut(".mem.", 0) == 1);
        GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemcpyDtoH(bytes, p, sizeof bytes));
    } else {
        CHECK(cut(".state", strcmp(what, "grown") ? 0 : 1 << 20) == 1);
        GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemAlloc(&more, 1 << 20));
    }
    GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemAlloc(&more, 1 << 20));
    GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemsetD8(p, 8, 1 << 20));
    GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuCtxSynchronize());
    return tap_end();
}
