/* Sends prepared Kafka requests for a while, several in flight per connection, and checks every response.
 *
 *   requests ADDRESS FRAMES [--seconds 3] [--in-flight 8] [--connections 1] [--rounds 0]
 *
 * A frame's mark is the position of the error code in its response (size field included), 0 for none; an error
 * ends the run. With --rounds, all frames are sent this number of times, without a time limit. */
#include "common.h"

#define MOST_VECTORS 64

struct client {
    int fd;
    struct inbox in;
    uint64_t first, asked, answered; /* requests */
    size_t sent_bytes;               /* of the first request that isn't sent completely */
    uint64_t sent;                   /* completely sent requests */
    int64_t *asked_ns;               /* ring of requests in flight */
};

static struct frame *frames;
static uint32_t frame_count, in_flight;
static uint64_t records, requests, reply_bytes;
static struct durations durations;
static int64_t last_ns;

static struct frame *frame_of(const struct client *c, uint64_t number) {
    return &frames[(c->first + number) % frame_count];
}

static void write_some(struct client *c) {
    while (c->sent < c->asked) {
        struct iovec vectors[MOST_VECTORS];
        int count = 0;
        for (uint64_t n = c->sent; n < c->asked && count < MOST_VECTORS; n++, count++) {
            struct frame *f = frame_of(c, n);
            size_t skip = n == c->sent ? c->sent_bytes : 0;
            vectors[count] = (struct iovec){f->data + skip, f->bytes - skip};
        }
        ssize_t sent = writev(c->fd, vectors, count);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return;
            die("write: %s", strerror(errno));
        }
        c->sent_bytes += sent;
        while (c->sent < c->asked && c->sent_bytes >= frame_of(c, c->sent)->bytes)
            c->sent_bytes -= frame_of(c, c->sent++)->bytes;
    }
}

static void read_some(struct client *c) {
    while (receive(c->fd, &c->in)) {
        const uint8_t *answer;
        size_t bytes;
        while ((answer = whole_frame(&c->in, &bytes))) {
            if (c->answered == c->sent)
                die("an answer that nobody asked for");
            struct frame *f = frame_of(c, c->answered);
            if (bytes < 8 || memcmp(answer + 4, f->data + 8, 4) != 0)
                die("an answer to another request");
            if (f->mark && (bytes < f->mark + 2 || be16(answer + f->mark)))
                die("error %d in a response", bytes < f->mark + 2 ? -1 : (int)be16(answer + f->mark));
            last_ns = now_ns();
            note_duration(&durations, last_ns - c->asked_ns[c->answered % in_flight]);
            c->answered++, requests++, records += f->records, reply_bytes += bytes;
            c->in.start += bytes;
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: requests ADDRESS FRAMES [options]");
    frames = read_frames(argv[2], &frame_count);
    double seconds = option(argc, argv, "--seconds", 3);
    uint64_t rounds = option(argc, argv, "--rounds", 0);
    uint32_t connections = option(argc, argv, "--connections", 1);
    in_flight = option(argc, argv, "--in-flight", 8);
    struct client *clients = reserve(connections * sizeof *clients);
    struct pollfd *polled = reserve(connections * sizeof *polled);
    for (uint32_t i = 0; i < connections; i++) {
        clients[i].fd = connect_to(argv[1]);
        do_not_block(clients[i].fd);
        clients[i].first = (uint64_t)i * frame_count / connections;
        clients[i].asked_ns = reserve(in_flight * sizeof(int64_t));
    }
    double cpu = own_cpu_seconds();
    int64_t began = now_ns(), ends = began + (int64_t)(seconds * 1e9);
    uint64_t left = rounds * frame_count;
    for (;;) {
        int64_t now = now_ns();
        int busy = 0;
        for (uint32_t i = 0; i < connections; i++) {
            struct client *c = &clients[i];
            while (c->asked - c->answered < in_flight && (rounds ? left > 0 : now < ends)) {
                c->asked_ns[c->asked++ % in_flight] = now;
                left -= rounds ? 1 : 0;
            }
            write_some(c);
            polled[i] = (struct pollfd){c->fd, POLLIN | (c->sent < c->asked ? POLLOUT : 0), 0};
            busy |= c->answered < c->asked;
        }
        if (!busy)
            break;
        if (poll(polled, connections, SILENCE_MS) == 0)
            die("no answer within %d ms", SILENCE_MS);
        for (uint32_t i = 0; i < connections; i++)
            if (polled[i].revents & (POLLIN | POLLHUP | POLLERR))
                read_some(&clients[i]);
    }
    cpu = own_cpu_seconds() - cpu;
    sort_durations(&durations);
    printf("{\"records\": %llu, \"requests\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f, \"reply_bytes\": %llu, "
           "\"p50_ms\": %.4f, \"p99_ms\": %.4f}\n",
           (unsigned long long)records, (unsigned long long)requests, (last_ns - began) / 1e9, cpu,
           (unsigned long long)reply_bytes, percentile_ms(&durations, 0.5), percentile_ms(&durations, 0.99));
    return 0;
}
