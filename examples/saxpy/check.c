/* saxpy-check [COUNT]: checks answers of the saxpy function.
 *
 * It reads answers from standard input, one per line, and computes the sum of each on the CPU. It exits
 * with status 0 if there are COUNT answers (default: at least one) and all sums are exactly right, and
 * with status 1 otherwise. */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "workload.h"

/* Returns the sum that the function must answer for `batch` pairs of vectors x and y, each of n elements.
 * Each launch computes y = a * x + y. The sum is that of all elements of y after the last launch. The
 * order and the precision of the steps are those of the function, so the two sums must be equal. */
static double expected(size_t n, float a, size_t batch, int launches)
{
	double sum = 0;

	for (size_t i = 0; i < n * batch; i++) {
		float y = input_y(i % n);
		for (int k = 0; k < launches; k++) {
			/* Round the product and then the sum, as the kernel does. `volatile` prevents a fused
			 * multiply-add, which rounds only once. */
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
			fprintf(stderr, "saxpy-check: invalid answer: want numbers n, batch and launches of at least 1: %s", line);
			wrong++;
			continue;
		}
		want = expected((size_t)n, (float)a, (size_t)batch, (int)launches);
		if (!(sum >= want && sum <= want)) { /* also if the sum is not a number */
			fprintf(stderr, "saxpy-check: wrong answer: got the sum %.17g, want %.17g: %s", sum, want, line);
			wrong++;
		} else {
			right++;
		}
	}
	fprintf(stderr, "saxpy-check: %ld right, %ld wrong\n", right, wrong);
	if (count && right != count)
		fprintf(stderr, "saxpy-check: got %ld right answers, want %ld\n", right, count);
	return wrong || !right || (count && right != count);
}
