/* The client of the HTTP benchmarks: one thread, epoll, answers counted by bytes.
 *
 *   loadgen resume HOST PORT REQUEST ANSWER_BYTES CONNECTIONS SECONDS RATE REUSE
 *   loadgen fanout HOST PORT REQUEST ANSWER_BYTES FOLLOWERS ROUNDS POST EVENT_BYTES
 *
 * REQUEST and POST are files with the raw request. An answer is complete after ANSWER_BYTES bytes; one
 * of another length is an error, so a wrong answer never counts as a fast one. RATE 0: every connection
 * asks again as soon as it has its answer. RATE n: n requests a second by the clock, each latency
 * counted from when it was due, so that a server that stalls cannot slow the load down. REUSE 1: the next
 * request goes over the same connection, 0: over a new one. Prints one JSON object.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES_MAX = 8 * 1000 * 1000, BUFFER = 1 << 18, REQUEST_MAX = 65536, BATCH = 1024, OPENING_MAX = 64 };

struct conn {
    int fd;
    long got;
    int64_t due;
};

static struct sockaddr_in server;
static char *request, buffer[BUFFER];
static size_t request_size;
static long answer_bytes;
static int poller;
static int64_t *samples;
static long sample_count, errors;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static char *slurp(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) die(path);
    char *text = malloc(REQUEST_MAX);
    *size = fread(text, 1, REQUEST_MAX, f);
    fclose(f);
    return text;
}

static void sample(int64_t ns) {
    if (sample_count < SAMPLES_MAX) samples[sample_count++] = ns;
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static double at(double q) {
    if (!sample_count) return 0;
    long i = (long)(q * sample_count);
    return samples[i < sample_count ? i : sample_count - 1] / 1e6;
}

static void report(double seconds) {
    qsort(samples, sample_count, sizeof *samples, compare);
    printf("{\"answers\": %ld, \"errors\": %ld, \"seconds\": %.3f, \"per_s\": %.1f, \"p50_ms\": %.3f, "
           "\"p90_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}",
           sample_count, errors, seconds, sample_count / seconds, at(.5), at(.9), at(.99), at(1));
}

static int dial(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&server, sizeof server)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void ask(struct conn *c, int64_t due) {
    c->got = 0;
    c->due = due;
    if (c->fd < 0) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        c->fd = dial();
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
    }
    if (write(c->fd, request, request_size) != (ssize_t)request_size) die("write");
}

/* Bytes of the answer so far; -1 when the server closed. */
static long drain(struct conn *c) {
    for (;;) {
        ssize_t n = read(c->fd, buffer, sizeof buffer);
        if (n > 0) {
            c->got += n;
            if (n < (ssize_t)sizeof buffer) return c->got;
        } else if (n < 0 && errno == EAGAIN) {
            return c->got;
        } else {
            return -1;
        }
    }
}

static void resume(int connections, double seconds, double rate, int reuse) {
    struct conn *all = calloc(connections, sizeof *all), **idle = calloc(connections, sizeof *idle);
    struct epoll_event ready[BATCH];
    int64_t began = now(), warm = began + 500000000LL, stop = warm + (int64_t)(seconds * 1e9);
    int64_t step = rate > 0 ? (int64_t)(1e9 / rate) : 0, due = began;
    int idle_count = 0;
    for (int i = 0; i < connections; i++) {
        all[i].fd = -1;
        idle[idle_count++] = &all[i];
    }
    for (int64_t t = began; t < stop; t = now()) {
        while (idle_count && (!step || due <= t)) {
            ask(idle[--idle_count], step ? due : t);
            due += step;
        }
        /* To the nanosecond: a millisecond's wait would be added to what is measured, and spinning would
         * take the core that the server needs. */
        int64_t left = step && idle_count ? due - now() : 100000000;
        struct timespec wait = {.tv_sec = 0, .tv_nsec = left > 0 ? left : 0};
        int n = epoll_pwait2(poller, ready, BATCH, &wait, NULL);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            long got = drain(c);
            if (got >= 0 && got < answer_bytes) continue;
            int right = got == answer_bytes;
            int64_t end = now();
            if (right && end > warm) sample(end - c->due);
            if (!right && errors++ < 3) fprintf(stderr, "%ld bytes, %ld expected\n", got, answer_bytes);
            if (!right || !reuse) {
                close(c->fd);
                c->fd = -1;
            }
            idle[idle_count++] = c;
        }
    }
    report(seconds);
    printf("\n");
}

static void all_open(struct conn *all, int followers) {
    struct epoll_event ready[BATCH];
    for (int open = 0, opening = 0, next = 0; open < followers;) {
        for (; next < followers && opening < OPENING_MAX; next++, opening++) {
            all[next].fd = -1;
            ask(&all[next], now());
        }
        int n = epoll_wait(poller, ready, BATCH, 10000);
        if (n <= 0) die("followers without an answer");
        for (int i = 0; i < n; i++) {
            long got = drain(ready[i].data.ptr);
            if (got < 0) die("a follower was closed");
            if (got < answer_bytes) continue;
            if (got > answer_bytes) errors++;
            open++, opening--;
        }
    }
}

static void fanout(int followers, int rounds, const char *post_path, long event_bytes) {
    size_t post_size;
    char *post = slurp(post_path, &post_size);
    struct conn *all = calloc(followers, sizeof *all);
    struct epoll_event ready[BATCH];
    int64_t began = now();
    all_open(all, followers);
    printf("{\"followers\": %d, \"open_s\": %.3f, \"rounds\": [", followers, (now() - began) / 1e9);
    for (int r = 0; r < rounds; r++) {
        usleep(300000);
        for (int i = 0; i < followers; i++) all[i].got = 0;
        sample_count = 0;
        int fd = dial();
        int64_t t = now();
        if (write(fd, post, post_size) != (ssize_t)post_size) die("post");
        for (int left = followers; left > 0;) {
            int n = epoll_wait(poller, ready, BATCH, 10000);
            if (n <= 0) die("followers that were not told");
            for (int i = 0; i < n; i++) {
                long got = drain(ready[i].data.ptr);
                if (got < 0) die("a follower was closed");
                if (got < event_bytes) continue;
                if (got > event_bytes) errors++;
                sample(now() - t);
                left--;
            }
        }
        close(fd);
        if (r) printf(", ");
        report((now() - t) / 1e9);
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    if (argc < 10) {
        fprintf(stderr, "see the head of loadgen.c\n");
        return 2;
    }
    server.sin_family = AF_INET;
    inet_pton(AF_INET, argv[2], &server.sin_addr);
    server.sin_port = htons(atoi(argv[3]));
    request = slurp(argv[4], &request_size);
    answer_bytes = atol(argv[5]);
    poller = epoll_create1(0);
    samples = malloc(sizeof *samples * SAMPLES_MAX);
    if (!strcmp(argv[1], "resume"))
        resume(atoi(argv[6]), atof(argv[7]), atof(argv[8]), atoi(argv[9]));
    else
        fanout(atoi(argv[6]), atoi(argv[7]), argv[8], atol(argv[9]));
    return 0;
}
