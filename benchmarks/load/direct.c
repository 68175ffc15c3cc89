/* Writes prepared entries directly to Redis: batches of XADD in MULTI/EXEC (or one XADD alone), pipelined.
 *
 *   direct ADDRESS FRAMES [--seconds 3] [--in-flight 8]
 *
 * A frame's mark is the length of its reply if it succeeded. Every entry ID in it begins with thirteen zeros,
 * which the client replaces by milliseconds: one more for each batch. */
#include "common.h"

#define DIGITS 13

struct batch {
    struct frame frame;
    uint32_t *ids; /* positions of the digits */
};

/* The placeholder that the preparing side writes for the milliseconds of an ID. */
static const char placeholder[DIGITS + 1] = "0000000000000";

static void find_ids(struct batch *batch) {
    batch->ids = reserve(batch->frame.records * sizeof *batch->ids);
    uint32_t found = 0;
    for (uint8_t *at = batch->frame.data; found < batch->frame.records; at += DIGITS) {
        at = memmem(at, batch->frame.data + batch->frame.bytes - at, placeholder, DIGITS);
        if (!at)
            die("a frame has fewer IDs than records");
        batch->ids[found++] = at - batch->frame.data;
    }
}

static void set_ids(struct batch *batch, int64_t ms) {
    char digits[DIGITS + 8];
    snprintf(digits, sizeof digits, "%013lld", (long long)ms);
    for (uint32_t i = 0; i < batch->frame.records; i++)
        memcpy(batch->frame.data + batch->ids[i], digits, DIGITS);
}

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: direct ADDRESS FRAMES [options]");
    uint32_t count, in_flight = option(argc, argv, "--in-flight", 8);
    struct frame *frames = read_frames(argv[2], &count);
    if (count < 2 * in_flight)
        die("a frame would be changed while it is sent: more frames than twice the number in flight needed");
    struct batch *batches = reserve(count * sizeof *batches);
    for (uint32_t i = 0; i < count; i++) {
        batches[i].frame = frames[i];
        find_ids(&batches[i]);
    }
    int fd = connect_to(argv[1]);
    do_not_block(fd);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t ms = wall.tv_sec * 1000LL;
    uint64_t asked = 0, sent = 0, answered = 0, records = 0;
    size_t sent_bytes = 0, reply_bytes = 0;
    uint8_t *replies = reserve(1 << 20), before = '\n';
    double cpu = own_cpu_seconds();
    int64_t began = now_ns(), ends = began + (int64_t)(option(argc, argv, "--seconds", 3) * 1e9), last = began;
    for (;;) {
        for (int64_t now = now_ns(); asked - answered < in_flight && now < ends; asked++)
            set_ids(&batches[asked % count], ++ms);
        while (sent < asked) {
            struct frame *f = &batches[sent % count].frame;
            ssize_t n = send(fd, f->data + sent_bytes, f->bytes - sent_bytes, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN)
                break;
            if (n < 0)
                die("send: %s", strerror(errno));
            sent_bytes += n;
            if (sent_bytes == f->bytes)
                sent++, sent_bytes = 0;
        }
        if (answered == asked)
            break;
        struct pollfd polled = {fd, POLLIN | (sent < asked ? POLLOUT : 0), 0};
        if (poll(&polled, 1, SILENCE_MS) == 0)
            die("no answer within %d ms", SILENCE_MS);
        ssize_t got = recv(fd, replies, 1 << 20, MSG_DONTWAIT);
        if (got == 0)
            die("the server closed the connection");
        if (got < 0)
            continue;
        uint8_t *error = before == '\n' && replies[0] == '-' ? replies : memmem(replies, got, "\n-", 2);
        if (error)
            die("Redis refused: %.*s", (int)(replies + got - error > 200 ? 200 : replies + got - error), error);
        before = replies[got - 1];
        reply_bytes += got;
        while (answered < asked && reply_bytes >= batches[answered % count].frame.mark) {
            struct frame *f = &batches[answered++ % count].frame;
            reply_bytes -= f->mark, records += f->records, last = now_ns();
        }
    }
    if (reply_bytes)
        die("%zu bytes of replies too many", reply_bytes);
    printf("{\"records\": %llu, \"requests\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f}\n",
           (unsigned long long)records, (unsigned long long)answered, (last - began) / 1e9, own_cpu_seconds() - cpu);
    return 0;
}
