/* SPDX-License-Identifier: GPL-2.0 */
/*
 * tap.h - tests in C that report by the Test Anything Protocol.
 *
 * A test is a function without arguments. CHECK() ends it at the first
 * condition that does not hold, saying where and with which row of a table.
 */
#ifndef TAP_H
#define TAP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tap_test {
	const char *name;
	void (*run)(void);
};

static jmp_buf tap_escape;
static char tap_row[160];

/* Names the row of a table that the checks to come are about. */
__attribute__((format(printf, 1, 2), unused))
static void tap_note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(tap_row, sizeof(tap_row), format, arguments);
	va_end(arguments);
}

__attribute__((noreturn))
static void tap_fail(const char *file, int line, const char *condition)
{
	printf("# %s:%d: %s does not hold%s%s\n", file, line, condition,
	       tap_row[0] ? ", with " : "", tap_row);
	longjmp(tap_escape, 1);
}

#define CHECK(condition) do {						\
	if (!(condition))						\
		tap_fail(__FILE__, __LINE__, #condition);		\
} while (0)

/* Whether the test came to its end. */
static int tap_passes(const struct tap_test *test)
{
	tap_row[0] = '\0';
	if (setjmp(tap_escape) != 0)
		return 0;
	test->run();
	return 1;
}

/*
 * Runs all tests, or those whose names contain @only; the exit status. With
 * --first for @only it runs all, up to the first that fails.
 */
static int tap_run(const struct tap_test *tests, int count, const char *only)
{
	int first = only && strcmp(only, "--first") == 0;
	int failed = 0;
	int number = 0;

	if (first)
		only = NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!only)
		printf("1..%d\n", count);
	for (int i = 0; i < count && !(first && failed); i++) {
		int passed;

		if (only && !strstr(tests[i].name, only))
			continue;
		number++;
		passed = tap_passes(&tests[i]);
		failed += !passed;
		printf("%s %d - %s\n", passed ? "ok" : "not ok", number, tests[i].name);
	}
	return failed ? 1 : 0;
}

#endif /* TAP_H */
