/* saxpy-check [COUNT]: reads answers of the saxpy function, one per line, computes each on the CPU
 * and compares. It exits with status 0 if there are COUNT answers (default: at least one) and all
 * are exact, and with status 1 otherwise. */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "workload.h"

/* Returns the sum of y as the function computes it, in the same order and precision. */
static double expected(size_t n, float a, size_t batch, int launches)
{
	double sum = 0;

	for (size_t i = 0; i < n * batch; i++) {
		float y = input_y(i % n);
		for (int k = 0; k < launches; k++) {
			/* Rounded twice, as the kernel does, not in one fused step. */
			volatile float product = a * input_x(i % n);
			y = product + y;
		}
		sum += (double)y;
	}
	return sum;
}

int main(int argc, char **argv)
{
	char line[4096];
	long right = 0, wrong = 0, count = argc > 1 ? atol(argv[1]) : 0;

	while (fgets(line, sizeof line, stdin)) {
		double n = 0, a = 0, batch = 0, launches = 0, sum = 0, want;
		struct json_field fields[] = {{"n", &n}, {"a", &a}, {"batch", &batch}, {"launches", &launches}, {"sum", &sum}};

		if (json_read(line, fields, 5) || n < 1 || batch < 1 || launches < 1) {
			fprintf(stderr, "saxpy-check: not an answer: %s", line);
			wrong++;
			continue;
		}
		want = expected((size_t)n, (float)a, (size_t)batch, (int)launches);
		if (sum < want || sum > want) {
			fprintf(stderr, "saxpy-check: sum is %.17g, want %.17g: %s", sum, want, line);
			wrong++;
		} else {
			right++;
		}
	}
	fprintf(stderr, "saxpy-check: %ld right, %ld wrong\n", right, wrong);
	return wrong || !right || (count && right != count);
}
