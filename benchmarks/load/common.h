/* Common parts of the load clients: options, time, sockets, frames from a file, big-endian numbers, percentiles.
 *
 * Usage of a client: `name ADDRESS ... --option value ...`. It prints one JSON object. ADDRESS is host:port or
 * unix:PATH. A failure ends the client with a message and status 1. */
#ifndef KORVET_LOAD_COMMON_H
#define KORVET_LOAD_COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Longest wait for a server's response. */
#define SILENCE_MS 20000

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline double own_cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static inline const char *text_option(int argc, char **argv, const char *name, const char *fallback) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return fallback;
}

static inline double option(int argc, char **argv, const char *name, double fallback) {
    const char *text = text_option(argc, argv, name, NULL);
    return text ? atof(text) : fallback;
}

static inline void *reserve(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        die("out of memory");
    return memory;
}

static inline int connect_to(const char *address) {
    int fd;
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        if (strlen(address + 5) >= sizeof to.sun_path)
            die("%s: too long for a socket", address);
        strcpy(to.sun_path, address + 5);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
            die("%s: %s", address, strerror(errno));
        /* As in korvet's connections: 208 KB are too small to keep Redis busy. */
        int send_buffer = 1 << 20;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
        return fd;
    }
    const char *colon = strrchr(address, ':');
    if (!colon)
        die("%s: expected host:port or unix:PATH", address);
    char host[256];
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        die("%s: no such address", address);
    fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) != 0)
        die("%s: %s", address, strerror(errno));
    freeaddrinfo(found);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static inline void do_not_block(int fd) {
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
        die("fcntl: %s", strerror(errno));
}

/* Big-endian numbers of the Kafka protocol. */
static inline uint16_t be16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
static inline uint32_t be32(const uint8_t *at) { return (uint32_t)be16(at) << 16 | be16(at + 2); }
static inline uint64_t be64(const uint8_t *at) { return (uint64_t)be32(at) << 32 | be32(at + 4); }
static inline void put16(uint8_t *at, uint16_t n) { at[0] = n >> 8, at[1] = n & 255; }
static inline void put32(uint8_t *at, uint32_t n) { put16(at, n >> 16), put16(at + 2, n & 65535); }
static inline void put64(uint8_t *at, uint64_t n) { put32(at, n >> 32), put32(at + 4, (uint32_t)n); }

/* Received bytes: [start, end) of `data` isn't consumed yet. */
struct inbox {
    uint8_t *data;
    size_t start, end, size;
};

/* Reads available bytes; returns 0 if there are none. */
static inline size_t receive(int fd, struct inbox *in) {
    if (in->start == in->end)
        in->start = in->end = 0;
    if (in->size - in->end < in->size / 4 || in->size == 0) {
        if (in->start > in->size / 2) {
            memmove(in->data, in->data + in->start, in->end - in->start);
        } else {
            size_t size = in->size ? in->size * 2 : 1 << 14;
            uint8_t *data = reserve(size);
            memcpy(data, in->data ? in->data + in->start : data, in->end - in->start);
            free(in->data);
            in->data = data, in->size = size;
        }
        in->end -= in->start, in->start = 0;
    }
    ssize_t got = recv(fd, in->data + in->end, in->size - in->end, MSG_DONTWAIT);
    if (got == 0)
        die("the server closed the connection");
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return 0;
        die("recv: %s", strerror(errno));
    }
    in->end += got;
    return got;
}

/* Returns the complete response frame (size field included) at the start of the inbox, or NULL. */
static inline const uint8_t *whole_frame(const struct inbox *in, size_t *bytes) {
    size_t held = in->end - in->start;
    if (held < 4)
        return NULL;
    *bytes = 4 + (size_t)be32(in->data + in->start);
    return held < *bytes ? NULL : in->data + in->start;
}

static inline void wait_readable(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    if (poll(&one, 1, SILENCE_MS) == 0)
        die("no answer within %d ms", SILENCE_MS);
}

static inline void send_all(int fd, const uint8_t *data, size_t bytes) {
    while (bytes) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            die("send: %s", strerror(errno));
        if (sent > 0)
            data += sent, bytes -= sent;
    }
}

/* A file of requests in native byte order: their count; then for each one, as uint32, its size in bytes, its number of
 * records, and a number whose meaning the client defines; then its data. */
struct frame {
    uint8_t *data;
    uint32_t bytes, records, mark;
};

static inline uint32_t next_u32(const uint8_t **at) {
    uint32_t n;
    memcpy(&n, *at, 4);
    *at += 4;
    return n;
}

static inline struct frame *read_frames(const char *path, uint32_t *count) {
    FILE *file = fopen(path, "rb");
    if (!file)
        die("%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    uint8_t *data = reserve(bytes);
    if (fread(data, 1, bytes, file) != (size_t)bytes)
        die("%s: cannot be read", path);
    fclose(file);
    const uint8_t *at = data;
    *count = next_u32(&at);
    struct frame *frames = reserve(*count * sizeof *frames);
    for (uint32_t i = 0; i < *count; i++) {
        frames[i].bytes = next_u32(&at);
        frames[i].records = next_u32(&at);
        frames[i].mark = next_u32(&at);
        frames[i].data = data + (at - data);
        at += frames[i].bytes;
    }
    return frames;
}

/* Durations, for percentiles at the end. */
struct durations {
    int64_t *ns;
    size_t count, size;
};

static inline void note_duration(struct durations *all, int64_t ns) {
    if (all->count == all->size) {
        all->size = all->size ? all->size * 2 : 1 << 12;
        all->ns = realloc(all->ns, all->size * sizeof *all->ns);
        if (!all->ns)
            die("out of memory");
    }
    all->ns[all->count++] = ns;
}

static inline int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Call after sort_durations. */
static inline double percentile_ms(const struct durations *all, double share) {
    return all->count ? all->ns[(size_t)(share * (all->count - 1))] / 1e6 : 0;
}

static inline void sort_durations(struct durations *all) {
    qsort(all->ns, all->count, sizeof *all->ns, by_size);
}

#endif
