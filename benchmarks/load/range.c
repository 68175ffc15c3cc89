/* Reads a stream with XRANGE from its first entry to its last, one command in flight, and counts entries.
 *
 *   range ADDRESS KEY [--count 500] */
#include "common.h"

#define MOST_ID_BYTES 64

static int fd;
static struct inbox in;
static size_t at; /* consumed bytes of the inbox, which moves its contents to make room */

static void need(size_t bytes) {
    while (in.end - in.start < bytes) {
        wait_readable(fd);
        receive(fd, &in);
    }
}

/* Returns the number in the next line, which must have this type. */
static int64_t take_number(char type) {
    uint8_t *end;
    for (size_t held = 0; !(end = memchr(in.data + in.start + at, '\n', held)); held = in.end - in.start - at)
        if (held == in.end - in.start - at)
            need(at + held + 1);
    char *line = (char *)in.data + in.start + at;
    if (*line != type)
        die("Redis answered %.*s", (int)(end - (uint8_t *)line), line);
    at = end + 1 - in.data - in.start;
    return strtoll(line + 1, NULL, 10);
}

/* Returns the next bulk string, valid until the next call. */
static const uint8_t *take_string(size_t *bytes) {
    *bytes = take_number('$');
    need(at + *bytes + 2);
    at += *bytes + 2;
    return in.data + in.start + at - *bytes - 2;
}

/* Reads one reply of entries. Returns their number, and the ID of the last one. */
static int64_t take_entries(char *last) {
    size_t bytes;
    at = 0;
    need(1);
    int64_t count = take_number('*');
    for (int64_t entry = 0; entry < count; entry++) {
        take_number('*');
        const uint8_t *id = take_string(&bytes);
        if (bytes >= MOST_ID_BYTES)
            die("an ID of %zu bytes", bytes);
        memcpy(last, id, bytes);
        last[bytes] = 0;
        for (int64_t fields = take_number('*'); fields; fields--)
            take_string(&bytes);
    }
    in.start += at;
    return count;
}

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: range ADDRESS KEY [options]");
    int per_command = option(argc, argv, "--count", 500);
    char id[MOST_ID_BYTES + 1] = "-", command[512], size[16];
    uint64_t records = 0, requests = 0;
    fd = connect_to(argv[1]);
    snprintf(size, sizeof size, "%d", per_command);
    double cpu = own_cpu_seconds();
    int64_t began = now_ns();
    for (int64_t got = per_command; got == per_command; requests++) {
        int bytes = snprintf(command, sizeof command,
                             "*6\r\n$6\r\nXRANGE\r\n$%zu\r\n%s\r\n$%zu\r\n%s%s\r\n$1\r\n+\r\n$5\r\nCOUNT\r\n$%zu\r\n%s\r\n",
                             strlen(argv[2]), argv[2], strlen(id) + (requests > 0), requests ? "(" : "", id, strlen(size),
                             size);
        send_all(fd, (uint8_t *)command, bytes);
        got = take_entries(id);
        records += got;
    }
    printf("{\"records\": %llu, \"requests\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f}\n", (unsigned long long)records,
           (unsigned long long)requests, (now_ns() - began) / 1e9, own_cpu_seconds() - cpu);
    return 0;
}
