/* Measures end-to-end latency: one connection sends single-record batches at a fixed rate with acks=1, another one
 * waits for them with long-poll fetches, in one process and on one clock.
 *
 *   latency ADDRESS FRAMES TOPIC [--rate 1000]
 *
 * Every frame is one Produce request of one record, whose value begins with the frame's number in big-endian
 * order; its mark is the position of the error code in the response. Requests are sent on time, even if earlier ones
 * are unanswered. A latency starts when the request is passed to the socket. */
#include "common.h"
#include "fetching.h"

#include <sys/prctl.h>

/* Warm-up without measurements: connections are new, and caches are cold. */
#define WARM_UP_S 1.0

static struct frame *frames;
static uint32_t count, consumed;
static int64_t *sent_ns;
static struct durations acknowledgements, arrivals;

static uint32_t skip_varint(const uint8_t **at) { return take_varint(at) >> 1; } /* zigzag of a non-negative number */

/* Returns the number of a record's frame; `at` moves past the record. */
static uint32_t number_of(const uint8_t **at) {
    uint32_t bytes = skip_varint(at);
    const uint8_t *inside = *at + 1; /* attributes */
    *at += bytes;
    while (*inside++ & 128)
        ; /* timestamp delta, which may be negative */
    skip_varint(&inside); /* offset delta */
    uint32_t key_bytes = skip_varint(&inside);
    inside += key_bytes;
    if (skip_varint(&inside) < 4)
        die("a value without a number");
    return be32(inside);
}

static void take_batch(void *context, const uint8_t *batch, size_t bytes) {
    (void)bytes;
    int64_t now = now_ns();
    const uint8_t *at = batch + BATCH_HEAD_BYTES;
    for (uint32_t left = be32(batch + 57); left; left--) {
        uint32_t number = number_of(&at);
        if (number != consumed)
            die("record %u arrived where %u was expected", number, consumed);
        if (number >= *(uint32_t *)context)
            note_duration(&arrivals, now - sent_ns[number]);
        consumed++;
    }
}

int main(int argc, char **argv) {
    if (argc < 4)
        die("usage: latency ADDRESS FRAMES TOPIC [options]");
    frames = read_frames(argv[2], &count);
    double rate = option(argc, argv, "--rate", 1000);
    uint32_t warm = WARM_UP_S * rate, sent = 0, answered = 0;
    if (count <= warm)
        die("more than %u frames needed", warm);
    sent_ns = reserve(count * sizeof *sent_ns);
    prctl(PR_SET_TIMERSLACK, 1);
    struct reader reader;
    open_reader(&reader, argv[1], argv[3], 0, 1, 1 << 20);
    struct inbox answers = {0};
    int fd = connect_to(argv[1]);
    double cpu = own_cpu_seconds();
    ask(&reader);
    int64_t began = now_ns(), heard = began;
    while (consumed < count || answered < count) {
        int64_t now = now_ns();
        int64_t due = began + (int64_t)(sent * 1e9 / rate);
        if (sent < count && now >= due) {
            sent_ns[sent] = now_ns();
            send_all(fd, frames[sent].data, frames[sent].bytes);
            sent++;
            continue;
        }
        if (now - heard > SILENCE_MS * 1000000LL)
            die("%u of %u records arrived", consumed, count);
        struct pollfd polled[2] = {{fd, POLLIN, 0}, {reader.fd, POLLIN, 0}};
        int64_t wait = sent < count ? due - now : 1000000000;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        if (ppoll(polled, 2, &timeout, NULL) <= 0)
            continue;
        heard = now_ns();
        if (polled[1].revents && take_answer(&reader, take_batch, &warm))
            ask(&reader);
        const uint8_t *answer;
        size_t bytes;
        if (polled[0].revents)
            receive(fd, &answers);
        for (; (answer = whole_frame(&answers, &bytes)); answers.start += bytes, answered++) {
            uint32_t mark = frames[answered].mark;
            if (bytes < mark + 2 || be16(answer + mark))
                die("error %d of a Produce", bytes < mark + 2 ? -1 : be16(answer + mark));
            if (answered >= warm)
                note_duration(&acknowledgements, heard - sent_ns[answered]);
        }
    }
    double seconds = (now_ns() - began) / 1e9;
    sort_durations(&acknowledgements);
    sort_durations(&arrivals);
    printf("{\"records\": %u, \"seconds\": %.6f, \"cpu_s\": %.6f, \"ack_p50_ms\": %.4f, \"ack_p99_ms\": %.4f, "
           "\"p50_ms\": %.4f, \"p99_ms\": %.4f, \"max_ms\": %.4f}\n",
           count, seconds, own_cpu_seconds() - cpu, percentile_ms(&acknowledgements, 0.5),
           percentile_ms(&acknowledgements, 0.99), percentile_ms(&arrivals, 0.5), percentile_ms(&arrivals, 0.99),
           percentile_ms(&arrivals, 1));
    return 0;
}
