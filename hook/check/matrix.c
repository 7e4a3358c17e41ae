/* matrix: checks the result of gfaas-kerneld's built-in matrix product, and helps to compare its
 * speed with the GPU's peak rate.
 *
 *   matrix make M N K TIMES FOLDER   writes A (M x K) and B (K x N) to A.bin and B.bin, and
 *                                    a request.json that computes C = A B TIMES times
 *   matrix right M N K FOLDER        checks whether C.bin is that product
 *   matrix peak                      prints the GPU's peak rate with 32-bit floats in
 *                                    Gflop/s, computed from its attributes; no program
 *                                    reaches it
 *
 * All numbers are multiples of 1/8 between -3 and 3, so every product and every sum is exact in a
 * float, and the result does not depend on the order of the sums. */
#include "check.h"

static float a_at(long i) { return (float)((i * 7 + i / 13) % 49 - 24) / 8; }
static float b_at(long i) { return (float)((i * 5 + i / 11) % 47 - 23) / 8; }

static FILE *in_folder(const char *folder, const char *name, const char *how)
{
    char path[4096];
    ASSERT((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path);
    FILE *f = fopen(path, how);
    if (!f) {
        perror(path);
        exit(1);
    }
    return f;
}

static void fill(const char *folder, const char *name, long n, float (*at)(long))
{
    FILE *f = in_folder(folder, name, "wb");
    for (long i = 0; i < n; i++) {
        float v = at(i);
        ASSERT(fwrite(&v, sizeof v, 1, f) == 1);
    }
    ASSERT(fclose(f) == 0);
}

static int make(long m, long n, long k, long times, const char *folder)
{
    fill(folder, "A.bin", m * k, a_at);
    fill(folder, "B.bin", k * n, b_at);
    FILE *f = in_folder(folder, "request.json", "w");
    fprintf(f, "{\"version\":1,\"iterations\":%ld,\"modules\":{\"b\":{\"builtin\":\"blas\"}},\n"
               " \"buffers\":{\"A\":{\"kind\":\"input\",\"key\":\"A\"},\"B\":{\"kind\":\"input\",\"key\":\"B\"},"
               "\"C\":{\"kind\":\"output\",\"key\":\"C\",\"size\":%ld}},\n"
               " \"kernels\":[{\"module\":\"b\",\"name\":\"sgemm\",\"args\":[{\"buffer\":\"A\"},{\"buffer\":\"B\"},{\"buffer\":\"C\"},"
               "{\"i32\":%ld},{\"i32\":%ld},{\"i32\":%ld}]}]}\n", times, 4 * m * n, m, n, k);
    return fclose(f) != 0;
}

static int right(long m, long n, long k, const char *folder)
{
    FILE *f = in_folder(folder, "C.bin", "rb");
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            float got, want = 0;
            if (fread(&got, sizeof got, 1, f) != 1) {
                printf("not ok C ends at row %ld, column %ld\n", i, j);
                return 1;
            }
            for (long l = 0; l < k; l++)
                want += a_at(i * k + l) * b_at(l * n + j);
            if (got != want) {
                printf("not ok C is %g at row %ld, column %ld, want %g\n", (double)got, i, j, (double)want);
                return 1;
            }
        }
    if (fgetc(f) != EOF) {
        printf("not ok C goes on after row %ld\n", m - 1);
        return 1;
    }
    fclose(f);
    return 0;
}

/* Returns the number of multiply-adds of 32-bit floats that a multiprocessor starts per clock cycle
 * (CUDA C++ Programming Guide, "Arithmetic Instructions"). */
static int lanes(int major, int minor)
{
    switch (major) {
    case 5:
        return 128;
    case 6:
        return minor == 0 ? 64 : 128;
    case 7:
        return 64;
    case 8:
        return minor == 0 ? 64 : 128;
    }
    return 128; /* 9 and later */
}

static int peak(void)
{
    CUdevice device;
    int sms, khz, major, minor;
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&device, 0));
    ASSERT_SUCCESS(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    ASSERT_SUCCESS(cuDeviceGetAttribute(&khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device));
    ASSERT_SUCCESS(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    ASSERT_SUCCESS(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    printf("%.1f\n", 2.0 * sms * lanes(major, minor) * khz / 1e6);
    return 0;
}

int main(int argc, char **argv)
{
    long n[4] = {0};
    int numbers = argc > 2 ? argc - 3 : 0;
    for (int i = 0; i < numbers && i < 4; i++)
        n[i] = atol(argv[2 + i]);
    if (argc == 7 && !strcmp(argv[1], "make"))
        return make(n[0], n[1], n[2], n[3], argv[6]);
    if (argc == 6 && !strcmp(argv[1], "right"))
        return right(n[0], n[1], n[2], argv[5]);
    if (argc == 2 && !strcmp(argv[1], "peak"))
        return peak();
    fprintf(stderr, "usage: matrix make M N K TIMES FOLDER | right M N K FOLDER | peak\n");
    return 2;
}
