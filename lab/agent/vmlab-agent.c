// SPDX-License-Identifier: GPL-2.0
/*
 * vmlab-agent.c - runs commands in a lab machine for the outside.
 *
 * It is process 1 of every lab machine and speaks frames over one
 * virtio-serial port, or over a terminal that it is told (a Xen guest's second
 * console). A frame is a header of 12 bytes, little endian,
 *
 *	u32 stream, u32 length of the payload, u16 type, u16 zero
 *
 * and its payload. A stream is one command (or one connection to a Unix
 * socket of this machine, by which the outside reaches the agents of inner
 * machines). The side that receives grants credit with WINDOW frames, for
 * stdin on one way and for stdout and stderr together on the other, so that
 * no stream can hold up another one. lab/vmlab/protocol.py is the other end.
 *
 * One thread, one poll() loop. Nothing in it may block: children are spawned
 * with fork() and every descriptor is non-blocking.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define PORT_NAME	"vmlab.agent"
#define MAX_PAYLOAD	65536u
#define MAX_STREAMS	512
#define HELLO_BYTES	16u	/* payload of a HELLO */
#define WINDOW_BYTES	262144u	/* stdin credit that a new stream has */
#define CHUNK		32768u
/* Children are not read while this much waits for the port. */
#define OUT_HIGH	(256u * 1024)
#define OUT_SIZE	(OUT_HIGH + 4 * MAX_PAYLOAD)
/* How long a terminal that was opened again may say nothing, in ms. */
#define SILENCE_FIRST	1000
#define SILENCE_MOST	60000
/* How long Linux may look at all its consoles, in ms: far longer than it does. */
#define LET_GO		200

enum frame_type {
	F_HELLO = 1, F_OPEN, F_DATA, F_EOF, F_OUT, F_ERR, F_WINDOW, F_CLOSE,
	F_SIGNAL, F_EXIT, F_ERROR, F_RESIZE, F_OPENED, F_WELCOME,
};

enum open_flags { OPEN_TTY = 1, OPEN_CONNECT = 2 };

struct header {
	uint32_t stream;
	uint32_t length;
	uint16_t type;
	uint16_t zero;
};

struct stream {
	bool used;
	uint32_t id;
	pid_t pid;		/* 0: a connection, or the child has ended */
	pid_t group;		/* process group to kill at the end */
	int in, out, err;	/* -1 when closed; in == out for a tty or socket */
	uint32_t credit;	/* bytes that we may still send */
	char *pending;		/* stdin that the child has not taken yet */
	uint32_t pending_start, pending_end;
	uint32_t ungranted;	/* stdin consumed, not yet given back as credit */
	bool in_eof;		/* close stdin when pending is empty */
	bool exited;
	int status;
};

static struct stream streams[MAX_STREAMS];
static int port = -1;
static bool terminal;		/* the port is one, so its line needs care */
static const char *terminal_path;
static bool synced = true;	/* false: skip input up to the next HELLO */
static int silence = -1;	/* for how long in ms to wait for that; -1: for ever */
static char outbuf[OUT_SIZE];
static size_t out_start, out_end;
static char inbuf[sizeof(struct header) + MAX_PAYLOAD];
static size_t in_len;

static void note(const char *what)
{
	fprintf(stderr, "vmlab-agent: %s: %s\n", what, strerror(errno));
}

static size_t out_used(void)
{
	return out_end - out_start;
}

static void flush_port(void)
{
	while (out_start < out_end) {
		ssize_t n = write(port, outbuf + out_start, out_end - out_start);

		if (n <= 0)
			break;
		out_start += (size_t)n;
	}
	if (out_start == out_end)
		out_start = out_end = 0;
}

/* Payload output stays below OUT_HIGH; the rest of the buffer is for the small
 * control frames. Should those overflow, the outside has stopped reading: it
 * will reconnect and start over, so dropping is safe.
 */
static void send_frame(uint32_t stream, uint16_t type, const void *data, uint32_t length)
{
	struct header h = { stream, length, type, 0 };

	if (out_end + sizeof(h) + length > OUT_SIZE && out_start) {
		memmove(outbuf, outbuf + out_start, out_used());
		out_end -= out_start;
		out_start = 0;
	}
	if (out_end + sizeof(h) + length > OUT_SIZE)
		return;
	memcpy(outbuf + out_end, &h, sizeof(h));
	memcpy(outbuf + out_end + sizeof(h), data, length);
	out_end += sizeof(h) + length;
}

static void send_error(uint32_t stream, int error, const char *what)
{
	char text[512];
	uint32_t code = (uint32_t)error;
	int n;

	memcpy(text, &code, sizeof(code));
	n = snprintf(text + 4, sizeof(text) - 4, "%s: %s", what, strerror(error));
	if (n > (int)sizeof(text) - 5)
		n = sizeof(text) - 5;
	send_frame(stream, F_ERROR, text, 4 + (uint32_t)n);
}

static void close_in(struct stream *s)
{
	if (s->in < 0)
		return;
	if (s->in == s->out) {
		/* Still read from, so end our direction only: ^D on a tty. */
		if (shutdown(s->in, SHUT_WR) < 0 && errno == ENOTSOCK &&
		    write(s->in, "\004", 1) < 0)
			note("end of input");
	} else {
		close(s->in);
	}
	s->in = -1;
}

static void drop_stream(struct stream *s)
{
	if (s->in >= 0 && s->in != s->out)
		close(s->in);
	if (s->out >= 0)
		close(s->out);
	if (s->err >= 0)
		close(s->err);
	free(s->pending);
	memset(s, 0, sizeof(*s));
}

static void kill_stream(struct stream *s)
{
	if (s->group > 0)
		kill(-s->group, SIGKILL);
	if (s->pid > 0)
		kill(s->pid, SIGKILL);
	drop_stream(s);	/* process 1 reaps the child whenever it ends */
}

static struct stream *find_stream(uint32_t id)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		if (streams[i].used && streams[i].id == id)
			return &streams[i];
	return NULL;
}

static struct stream *new_stream(uint32_t id)
{
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct stream *s = &streams[i];

		if (s->used)
			continue;
		memset(s, 0, sizeof(*s));
		s->pending = malloc(WINDOW_BYTES);
		if (!s->pending)
			return NULL;
		s->used = true;
		s->id = id;
		s->in = s->out = s->err = -1;
		return s;
	}
	return NULL;
}

static void nonblock(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int open_connection(struct stream *s, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(address.sun_path))
		return ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int error = errno;

		close(fd);
		return error;
	}
	s->in = s->out = fd;
	return 0;
}

static void child_exec(const char *cwd, char **argv, char **envp)
{
	static const int defaults[] = { SIGPIPE, SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	sigset_t none;

	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
		signal(defaults[i], SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (cwd[0] && chdir(cwd) < 0 && chdir("/") < 0)
		_exit(126);
	environ = envp;
	execvp(argv[0], argv);
}

/* The child reports a failed exec through a close-on-exec pipe. */
static int open_command(struct stream *s, bool tty, const char *cwd, char **argv, char **envp)
{
	int in[2] = { -1, -1 }, out[2] = { -1, -1 }, err[2] = { -1, -1 }, fail[2];
	int error = 0, master = -1;
	pid_t pid;

	if (pipe2(fail, O_CLOEXEC) < 0)
		return errno;
	if (!tty && (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0 ||
		     pipe2(err, O_CLOEXEC) < 0)) {
		error = errno;
		goto close_all;
	}
	pid = tty ? forkpty(&master, NULL, NULL, NULL) : fork();
	if (pid < 0) {
		error = errno;
		goto close_all;
	}
	if (pid == 0) {
		if (!tty) {
			setsid();
			dup2(in[0], 0);
			dup2(out[1], 1);
			dup2(err[1], 2);
		}
		child_exec(cwd, argv, envp);
		error = errno;
		if (write(fail[1], &error, sizeof(error)) < 0)
			_exit(125);
		_exit(127);
	}
	close(fail[1]);
	fail[1] = -1;
	/* Until exec the child runs only our own few lines: this is short. */
	if (read(fail[0], &error, sizeof(error)) != sizeof(error))
		error = 0;
	if (error) {
		if (master >= 0)
			close(master);
		goto close_all;
	}
	s->pid = s->group = pid;
	if (tty) {
		fcntl(master, F_SETFD, FD_CLOEXEC);
		s->in = s->out = master;
	} else {
		close(in[0]);
		close(out[1]);
		close(err[1]);
		s->in = in[1];
		s->out = out[0];
		s->err = err[0];
		nonblock(s->err);
	}
	nonblock(s->in);
	nonblock(s->out);
	close(fail[0]);
	return 0;

close_all:
	for (int i = 0; i < 2; i++) {
		if (in[i] >= 0)
			close(in[i]);
		if (out[i] >= 0)
			close(out[i]);
		if (err[i] >= 0)
			close(err[i]);
		if (fail[i] >= 0)
			close(fail[i]);
	}
	return error;
}

/* OPEN: u32 flags, credit, argc, envc; then cwd, argv and environment as
 * strings that each end in a zero byte.
 */
static void handle_open(uint32_t id, char *data, uint32_t length)
{
	uint32_t fixed[4], count, n = 0;
	struct stream *s;
	char **strings;
	int error;

	if (length <= sizeof(fixed) || data[length - 1] || find_stream(id)) {
		send_error(id, EINVAL, "open");
		return;
	}
	memcpy(fixed, data, sizeof(fixed));
	count = 1 + fixed[2] + fixed[3];
	if (fixed[2] < 1 || fixed[2] > length || fixed[3] > length) {
		send_error(id, EINVAL, "open");
		return;
	}
	/* cwd, argv, NULL, environment, NULL */
	strings = calloc(count + 2, sizeof(*strings));
	s = new_stream(id);
	if (!strings || !s) {
		free(strings);
		if (s)
			drop_stream(s);
		send_error(id, ENOMEM, "open");
		return;
	}
	for (uint32_t at = sizeof(fixed); at < length && n < count; n++) {
		strings[n < 1 + fixed[2] ? n : n + 1] = data + at;
		at += (uint32_t)strlen(data + at) + 1;
	}
	s->credit = fixed[1];
	if (n < count)
		error = EINVAL;
	else if (fixed[0] & OPEN_CONNECT)
		error = open_connection(s, strings[1]);
	else
		error = open_command(s, fixed[0] & OPEN_TTY, strings[0], strings + 1,
				     strings + 2 + fixed[2]);
	if (error) {
		send_error(id, error, strings[1] ? strings[1] : "open");
		drop_stream(s);
	} else {
		uint32_t pid = (uint32_t)s->pid;

		send_frame(id, F_OPENED, &pid, sizeof(pid));
	}
	free(strings);
}

static void grant(struct stream *s, uint32_t bytes)
{
	s->ungranted += bytes;
	if (s->ungranted >= WINDOW_BYTES / 4 || s->pending_start == s->pending_end) {
		send_frame(s->id, F_WINDOW, &s->ungranted, sizeof(s->ungranted));
		s->ungranted = 0;
	}
}

static void write_stdin(struct stream *s)
{
	while (s->pending_start < s->pending_end) {
		uint32_t length = s->pending_end - s->pending_start;
		ssize_t n = s->in < 0 ? (ssize_t)length :
			    write(s->in, s->pending + s->pending_start, length);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0) {
			/* The child reads no more; go on swallowing its stdin. */
			close_in(s);
			continue;
		}
		s->pending_start += (uint32_t)n;
		grant(s, (uint32_t)n);
	}
	s->pending_start = s->pending_end = 0;
	if (s->in_eof)
		close_in(s);
}

static void handle_data(struct stream *s, const char *data, uint32_t length)
{
	if (s->pending_end + length > WINDOW_BYTES && s->pending_start) {
		memmove(s->pending, s->pending + s->pending_start,
			s->pending_end - s->pending_start);
		s->pending_end -= s->pending_start;
		s->pending_start = 0;
	}
	if (s->pending_end + length > WINDOW_BYTES) {
		/* More than the credit that we gave. */
		send_error(s->id, EOVERFLOW, "stdin");
		kill_stream(s);
		return;
	}
	memcpy(s->pending + s->pending_end, data, length);
	s->pending_end += length;
	write_stdin(s);
}

static void reset(void)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		if (streams[i].used)
			kill_stream(&streams[i]);
	out_start = out_end = 0;
}

static void handle_frame(const struct header *h, char *data)
{
	struct stream *s;
	uint32_t number = 0;

	if (h->length >= sizeof(number))
		memcpy(&number, data, sizeof(number));
	if (h->type == F_HELLO) {
		reset();
		/* Of another type than what asked: an echo is no answer. */
		send_frame(0, F_WELCOME, data, h->length);
		return;
	}
	if (h->type == F_OPEN) {
		handle_open(h->stream, data, h->length);
		return;
	}
	s = find_stream(h->stream);
	if (!s)
		return;	/* it ended while this frame was on its way */
	switch (h->type) {
	case F_DATA:
		handle_data(s, data, h->length);
		break;
	case F_EOF:
		s->in_eof = true;
		write_stdin(s);
		break;
	case F_WINDOW:
		s->credit += number;
		break;
	case F_CLOSE:
		kill_stream(s);
		break;
	case F_SIGNAL:
		if (s->group > 0)
			kill(-s->group, (int)number);
		break;
	case F_RESIZE: {
		struct winsize size = { .ws_row = number & 0xffff, .ws_col = number >> 16 };

		ioctl(s->out, TIOCSWINSZ, &size);
		break;
	}
	default:
		break;
	}
}

/* A terminal can have lost the beginning of what it received before it was in
 * raw mode. Returns false when the input has no HELLO yet.
 */
static bool find_hello(void)
{
	static const struct header hello = { 0, HELLO_BYTES, F_HELLO, 0 };
	char *found = memmem(inbuf, in_len, &hello, sizeof(hello));
	size_t keep = in_len < sizeof(hello) ? in_len : sizeof(hello) - 1;

	if (found)
		keep = (size_t)(inbuf + in_len - found);
	memmove(inbuf, inbuf + in_len - keep, keep);
	in_len = keep;
	synced = found;
	return synced;
}

/* Returns false when the outside has gone. */
static bool read_port(void)
{
	for (int round = 0; round < 8; round++) {
		size_t at = 0;
		ssize_t n = read(port, inbuf + in_len, sizeof(inbuf) - in_len);

		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		if (n == 0)
			return false;
		in_len += (size_t)n;
		if (!synced && !find_hello())
			continue;
		while (in_len - at >= sizeof(struct header)) {
			struct header h;
			char *data = inbuf + at + sizeof(h);

			memcpy(&h, inbuf + at, sizeof(h));
			if (h.length > MAX_PAYLOAD) {
				in_len = 0;
				synced = !terminal;
				return true;	/* garbage: wait for a new HELLO */
			}
			if (in_len - at < sizeof(h) + h.length)
				break;
			at += sizeof(h) + h.length;
			handle_frame(&h, data);
		}
		memmove(inbuf, inbuf + at, in_len - at);
		in_len -= at;
	}
	return true;
}

/* Sends what one output has, at most its credit. Returns false at its end. */
static bool relay(struct stream *s, int fd, uint16_t type)
{
	static char buffer[CHUNK];
	uint32_t want = s->credit < CHUNK ? s->credit : CHUNK;
	ssize_t n;

	if (!want || out_used() >= OUT_HIGH)
		return true;
	n = read(fd, buffer, want);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;	/* a pty says EIO when its last user has gone */
	s->credit -= (uint32_t)n;
	send_frame(s->id, type, buffer, (uint32_t)n);
	return true;
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return fd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & POLLIN);
}

/* A command is over when its process has ended and its output was sent. Output
 * that a process left in the background writes later is not waited for.
 */
static void finish(struct stream *s)
{
	int32_t code;

	if (s->group && !s->exited)
		return;
	if (s->group ? readable(s->out) || readable(s->err) : s->out >= 0)
		return;
	if (WIFSIGNALED(s->status))
		code = 128 + WTERMSIG(s->status);
	else
		code = WEXITSTATUS(s->status);
	send_frame(s->id, F_EXIT, &code, sizeof(code));
	drop_stream(s);
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (int i = 0; i < MAX_STREAMS; i++) {
			struct stream *s = &streams[i];

			if (!s->used || s->pid != pid)
				continue;
			s->pid = 0;
			s->exited = true;
			s->status = status;
		}
	}
}

static int open_port(void)
{
	char path[512], name[64];
	struct dirent *entry;
	int fd = -1;
	DIR *dir;

	dir = opendir("/sys/class/virtio-ports");
	while (dir && fd < 0 && (entry = readdir(dir))) {
		ssize_t n;
		int name_fd;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
		name_fd = open(path, O_RDONLY | O_CLOEXEC);
		if (name_fd < 0)
			continue;
		n = read(name_fd, name, sizeof(name) - 1);
		close(name_fd);
		name[n > 0 ? n : 0] = 0;
		name[strcspn(name, "\n")] = 0;
		if (strcmp(name, PORT_NAME))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
		fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0)
			note(path);
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* A terminal starts in a mode that edits and echoes lines. */
static int open_terminal(const char *path)
{
	struct termios mode;
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

	if (fd < 0)
		return -1;
	if (tcgetattr(fd, &mode) < 0) {
		close(fd);
		return -1;
	}
	cfmakeraw(&mode);
	tcsetattr(fd, TCSANOW, &mode);
	tcflush(fd, TCIOFLUSH);
	terminal = true;
	synced = false;
	return fd;
}

/*
 * Returns once there is a port. What the outside sent to a terminal until then
 * may be lost: it is told to greet again.
 */
static void wait_for_port(void)
{
	int tries = 0;

	while ((port = terminal_path ? open_terminal(terminal_path) : open_port()) < 0) {
		if (++tries == 500) {
			errno = ENODEV;
			note(terminal_path ? terminal_path : "no virtio-serial port " PORT_NAME);
		}
		poll(NULL, 0, 20);
	}
	if (terminal)
		send_frame(0, F_WELCOME, "", 0);
}

/*
 * Waits until Linux has let go of the terminal that was just closed.
 *
 * A Xen console that a restore took away keeps its number until a work item of
 * the kernel, begun by our close(), has freed it (hvc_cleanup()). Who opens it
 * before has the old one: its output goes the new one's way, but its interrupt
 * never comes. Who opens it while it is freed has memory that is free, as
 * hvc_get_by_index() takes what has no reference any more, too. To have
 * the kernel refresh its counters waits for a later item of the same queue on
 * each CPU (vmstat_refresh()), so ours has begun then. It may still want the
 * lock that khvcd has for as long as it looks at all consoles, and nothing tells
 * of that.
 */
static void let_go(void)
{
	int fd = open("/proc/sys/vm/stat_refresh", O_WRONLY | O_CLOEXEC);

	/* Nobody but root may, and it may find fault with the counters; it has waited then. */
	if (fd >= 0 && write(fd, "1", 1) < 0 && errno != EINVAL)
		note("stat_refresh");
	if (fd >= 0)
		close(fd);
	poll(NULL, 0, LET_GO);
}

/*
 * Opens a terminal anew, once what belonged to it is forgotten.
 *
 * Whether it is the right one (see let_go()) shows only when the outside greets.
 * So one that stays silent is opened once more, and has longer each time, as an
 * answer may only be slow.
 */
static void open_again(int milliseconds)
{
	silence = milliseconds < SILENCE_MOST ? milliseconds : SILENCE_MOST;
	close(port);
	let_go();
	wait_for_port();
}

static struct pollfd polls[2 + 3 * MAX_STREAMS];
static struct stream *poll_stream[2 + 3 * MAX_STREAMS];

static int add_poll(int at, int fd, short events, struct stream *s)
{
	polls[at] = (struct pollfd){ .fd = fd, .events = events };
	poll_stream[at] = s;
	return at + 1;
}

static void one_round(int signals)
{
	bool room = out_used() < OUT_HIGH;
	int n = 0, found;

	n = add_poll(n, signals, POLLIN, NULL);
	n = add_poll(n, port, POLLIN | (out_used() ? POLLOUT : 0), NULL);
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct stream *s = &streams[i];

		if (!s->used)
			continue;
		if (s->in >= 0 && s->pending_start < s->pending_end)
			n = add_poll(n, s->in, POLLOUT, s);
		if (s->out >= 0 && s->credit && room)
			n = add_poll(n, s->out, POLLIN, s);
		if (s->err >= 0 && s->credit && room)
			n = add_poll(n, s->err, POLLIN, s);
	}
	found = poll(polls, (nfds_t)n, synced ? -1 : silence);
	if (found < 0)
		return;
	if (polls[0].revents) {
		struct signalfd_siginfo info;

		while (read(signals, &info, sizeof(info)) > 0)
			;
		reap();
	}
	for (int i = 2; i < n; i++) {
		struct stream *s = poll_stream[i];
		int fd = polls[i].fd;

		if (!polls[i].revents || !s->used)
			continue;
		if (polls[i].events == POLLOUT) {
			write_stdin(s);
		} else if (fd == s->out && !relay(s, fd, F_OUT)) {
			if (s->in == s->out)
				s->in = -1;
			close(s->out);
			s->out = -1;
		} else if (fd == s->err && !relay(s, fd, F_ERR)) {
			close(s->err);
			s->err = -1;
		}
	}
	for (int i = 0; i < MAX_STREAMS; i++)
		if (streams[i].used && (streams[i].exited || !streams[i].group))
			finish(&streams[i]);
	flush_port();
	/* Last, as frames may free the streams that were polled. */
	if (!found || polls[1].revents & POLLHUP) {
		reset();
		in_len = 0;
		if (terminal)	/* the guest was restored, just now or when it was silent first */
			open_again(found ? SILENCE_FIRST : 2 * silence);
		else
			poll(NULL, 0, 50);	/* no event tells of a new connection */
	} else if ((polls[1].revents & POLLIN) && !read_port()) {
		reset();
		in_len = 0;
	}
	flush_port();
}

int main(int argc, char **argv)
{
	sigset_t set;
	int signals;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (argc > 1)
		terminal_path = argv[1];
	wait_for_port();
	fprintf(stderr, "vmlab-agent: ready\n");
	for (;;)
		one_round(signals);
}
