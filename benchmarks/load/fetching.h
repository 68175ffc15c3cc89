/* One consumer's connection: Fetch v12 requests (KIP-595) and their responses. */
#ifndef KORVET_LOAD_FETCHING_H
#define KORVET_LOAD_FETCHING_H

#include "common.h"

#define FETCH_WAIT_MS 500
#define BATCH_HEAD_BYTES 61

struct reader {
    int fd;
    struct inbox in;
    uint8_t *request;
    size_t request_bytes, topic_bytes;
    uint32_t first_partition, partitions;
    uint64_t *next;     /* next offset, by partition */
    size_t *next_at;    /* its position in the request */
    uint64_t records, bytes;
};

typedef void on_batch(void *context, const uint8_t *batch, size_t bytes);

static inline size_t put_varint(uint8_t *at, uint32_t n) {
    size_t bytes = 0;
    for (; n >= 128; n >>= 7)
        at[bytes++] = (n & 127) | 128;
    at[bytes++] = n;
    return bytes;
}

static inline uint32_t take_varint(const uint8_t **at) {
    uint32_t n = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        n |= (uint32_t)(byte & 127) << shift;
        if (byte < 128 || shift > 28)
            return n;
    }
}

static inline void prepare_reader(struct reader *r, const char *topic, uint32_t first, uint32_t partitions,
                                  uint32_t partition_bytes) {
    memset(r, 0, sizeof *r);
    r->topic_bytes = strlen(topic);
    r->first_partition = first, r->partitions = partitions;
    r->next = reserve(partitions * sizeof *r->next);
    r->next_at = reserve(partitions * sizeof *r->next_at);
    uint8_t *p = r->request = reserve(128 + r->topic_bytes + 40UL * partitions);
    p += 4;
    put16(p, 1), put16(p + 2, 12), put32(p + 4, 7), p += 8;                 /* Fetch v12, correlation id 7 */
    put16(p, 4), memcpy(p + 2, "load", 4), p += 6, *p++ = 0;                /* client id, tags */
    put32(p, -1), put32(p + 4, FETCH_WAIT_MS), put32(p + 8, 1), p += 12;    /* replica, max wait, min bytes */
    put32(p, 50 << 20), p += 4, *p++ = 0;                                   /* max bytes, isolation */
    put32(p, 0), put32(p + 4, -1), p += 8;                                  /* no session */
    p += put_varint(p, 2);
    p += put_varint(p, r->topic_bytes + 1), memcpy(p, topic, r->topic_bytes), p += r->topic_bytes;
    p += put_varint(p, partitions + 1);
    for (uint32_t i = 0; i < partitions; i++) {
        put32(p, first + i), put32(p + 4, -1), p += 8;                      /* partition, leader epoch */
        r->next_at[i] = p - r->request;
        put64(p, 0), put32(p + 8, -1), put64(p + 12, -1), p += 20;          /* offset, last epoch, log start */
        put32(p, partition_bytes), p += 4, *p++ = 0;
    }
    *p++ = 0, *p++ = 1, *p++ = 1, *p++ = 0; /* tags of the topic, nothing forgotten, no rack, tags */
    r->request_bytes = p - r->request;
    put32(r->request, r->request_bytes - 4);
}

static inline void open_reader(struct reader *r, const char *address, const char *topic, uint32_t first,
                               uint32_t partitions, uint32_t partition_bytes) {
    prepare_reader(r, topic, first, partitions, partition_bytes);
    r->fd = connect_to(address);
}

static inline void ask(struct reader *r) {
    for (uint32_t i = 0; i < r->partitions; i++)
        put64(r->request + r->next_at[i], r->next[i]);
    send_all(r->fd, r->request, r->request_bytes);
}

static inline void take_batches(struct reader *r, uint32_t index, const uint8_t *at, size_t bytes, on_batch *tell,
                                void *context) {
    /* The last batch may be truncated. */
    while (bytes >= BATCH_HEAD_BYTES && bytes >= 12 + (size_t)be32(at + 8)) {
        size_t size = 12 + (size_t)be32(at + 8);
        uint64_t last = be64(at) + be32(at + 23);
        if (last < r->next[index])
            die("offsets go back: %llu", (unsigned long long)last);
        r->next[index] = last + 1;
        r->records += be32(at + 57), r->bytes += size;
        if (tell)
            tell(context, at, size);
        at += size, bytes -= size;
    }
}

/* Returns whether a complete response was available. Then counts and reports its batches. */
static inline int take_answer(struct reader *r, on_batch *tell, void *context) {
    const uint8_t *answer;
    size_t bytes;
    while (!(answer = whole_frame(&r->in, &bytes)))
        if (!receive(r->fd, &r->in))
            return 0;
    const uint8_t *at = answer + 4 + 4 + 1 + 4; /* size, correlation id, tags, throttle time */
    if (be16(at))
        die("error %d of a Fetch", be16(at));
    at += 2 + 4; /* error, session */
    uint32_t topics = take_varint(&at);
    for (uint32_t t = 1; t < topics; t++) {
        uint32_t name = take_varint(&at);
        at += name - 1;
        uint32_t partitions = take_varint(&at);
        for (uint32_t i = 1; i < partitions; i++) {
            uint32_t index = be32(at) - r->first_partition;
            if (be16(at + 4))
                die("error %d of partition %u", be16(at + 4), be32(at));
            at += 4 + 2 + 8 + 8 + 8; /* index, error, high watermark, last stable offset, log start */
            uint32_t aborted = take_varint(&at);
            for (uint32_t a = 1; a < aborted; a++)
                at += 17;
            at += 4; /* preferred replica */
            uint32_t size = take_varint(&at);
            if (size > 1)
                take_batches(r, index, at, size - 1, tell, context);
            at += size ? size - 1 : 0;
            for (uint32_t tags = take_varint(&at); tags; tags--) {
                take_varint(&at);
                uint32_t tag_bytes = take_varint(&at);
                at += tag_bytes;
            }
        }
        at++; /* tags of the topic */
    }
    r->in.start += bytes;
    return 1;
}

#endif
