/* Changes test inputs: an input is two bytes that choose the command's arguments, and a record batch.

   It changes records as records, and then writes a batch whose lengths and counts fit, or damages bytes. So most
   inputs get past the first checks. */

#define INPUT_HEAD 2
#define BATCH_HEADER 61
#define MOST_RECORDS 48
#define LARGEST_BATCH 16384

/* Of libFuzzer; module_fuzz.c has one without feedback for programs without libFuzzer. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

typedef struct {
    int64_t time_delta;
    const uint8_t *key, *value, *headers;
    int64_t key_size, value_size, header_count;
    size_t headers_size;
} Part;

/* A batch in parts. `fresh` has the bytes of new parts. */
typedef struct {
    uint8_t header[BATCH_HEADER];
    Part parts[MOST_RECORDS];
    int count;
    uint8_t fresh[LARGEST_BATCH];
    size_t fresh_used;
} Parts;

static uint64_t random_state = UINT64_C(88172645463325252);

static uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 11;
}

static size_t below(size_t limit)
{
    return (size_t)(random_number() % limit);
}

/* Numbers at the limits of their types, and some small ones. */
static int64_t odd_number(void)
{
    static const int64_t numbers[] = {0, 1, -1, 63, 64, -64, -65, 127, 128, 8191, 8192, 1000, INT32_MAX, INT32_MIN,
        INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, INT64_C(1795546653000), -INT64_C(1795546653000)};
    return numbers[below(sizeof numbers / sizeof *numbers)];
}

static void put_big_endian(uint8_t *at, uint64_t number, int size)
{
    while (size--)
        *at++ = (uint8_t)(number >> 8 * size);
}

static size_t write_varint(uint8_t *at, int64_t number)
{
    uint64_t raw = (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
    size_t size = 0;
    for (; raw > 127; raw >>= 7)
        at[size++] = (uint8_t)(raw | 128);
    at[size++] = (uint8_t)raw;
    return size;
}

static int take_varint(const uint8_t **at, const uint8_t *end, int64_t *number)
{
    uint64_t raw = 0;
    int shift;
    for (shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        raw |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            raw = raw >> 1 ^ (raw & 1 ? UINT64_MAX : 0);
            memcpy(number, &raw, sizeof raw);
            return 1;
        }
    }
    return 0;
}

static int take_sized(const uint8_t **at, const uint8_t *end, const uint8_t **bytes, int64_t *size)
{
    if (!take_varint(at, end, size) || *size < -1 || *size > end - *at)
        return 0;
    *bytes = *at;
    *at += *size > 0 ? *size : 0;
    return 1;
}

/* Takes a batch apart, up to the first record that is damaged. */
static void take_apart(Parts *parts, const uint8_t *batch, size_t size)
{
    const uint8_t *at = batch + BATCH_HEADER, *end = batch + size;
    parts->count = 0;
    parts->fresh_used = 0;
    memset(parts->header, 0, BATCH_HEADER);
    memcpy(parts->header, batch, size < BATCH_HEADER ? size : BATCH_HEADER);
    while (size > BATCH_HEADER && at < end && parts->count < MOST_RECORDS) {
        Part *part = &parts->parts[parts->count];
        int64_t length, delta;
        const uint8_t *record_end;
        if (!take_varint(&at, end, &length) || length < 1 || length > end - at)
            return;
        record_end = at++ + length;
        if (!take_varint(&at, record_end, &part->time_delta) || !take_varint(&at, record_end, &delta)
            || !take_sized(&at, record_end, &part->key, &part->key_size)
            || !take_sized(&at, record_end, &part->value, &part->value_size)
            || !take_varint(&at, record_end, &part->header_count))
            return;
        part->headers = at;
        part->headers_size = (size_t)(record_end - at);
        at = record_end;
        parts->count++;
    }
}

/* Writes a batch of the parts that have room, with a sound header apart from the bytes that `parts` has. */
static size_t write_batch(const Parts *parts, uint8_t *batch, size_t room)
{
    size_t size = BATCH_HEADER;
    int count = 0;
    memcpy(batch, parts->header, BATCH_HEADER);
    for (; count < parts->count; count++) {
        const Part *part = &parts->parts[count];
        uint8_t body[64 + 2 * LARGEST_BATCH];
        size_t used = 1;
        size_t bytes = (size_t)(part->key_size > 0 ? part->key_size : 0)
            + (size_t)(part->value_size > 0 ? part->value_size : 0) + part->headers_size;
        if (size + bytes + 50 > room)
            break;
        body[0] = 0;
        used += write_varint(body + used, part->time_delta);
        used += write_varint(body + used, count);
        used += write_varint(body + used, part->key_size);
        if (part->key_size > 0)
            memcpy(body + used, part->key, (size_t)part->key_size), used += (size_t)part->key_size;
        used += write_varint(body + used, part->value_size);
        if (part->value_size > 0)
            memcpy(body + used, part->value, (size_t)part->value_size), used += (size_t)part->value_size;
        used += write_varint(body + used, part->header_count);
        memcpy(body + used, part->headers, part->headers_size), used += part->headers_size;
        size += write_varint(batch + size, (int64_t)used);
        memcpy(batch + size, body, used), size += used;
    }
    put_big_endian(batch + 8, size - 12, 4);
    batch[16] = 2;
    put_big_endian(batch + 23, (uint64_t)(count - 1), 4);
    put_big_endian(batch + 57, (uint64_t)count, 4);
    return size;
}

static uint8_t *fresh_bytes(Parts *parts, size_t size)
{
    uint8_t *bytes = parts->fresh + parts->fresh_used;
    size_t i;
    for (i = 0; i < size; i++)
        bytes[i] = (uint8_t)random_number();
    parts->fresh_used += size;
    return bytes;
}

static void new_sized(Parts *parts, const uint8_t **bytes, int64_t *size)
{
    static const int64_t sizes[] = {-1, -1, 0, 1, 5, 20, 63, 64, 100, 130};
    *size = sizes[below(sizeof sizes / sizeof *sizes)];
    *bytes = fresh_bytes(parts, (size_t)(*size > 0 ? *size : 0));
}

/* Headers: none, a few, or nearly as many as an entry can have, or a few more. */
static void new_headers(Parts *parts, Part *part)
{
    uint8_t *at = parts->fresh + parts->fresh_used;
    int many = below(32) == 0;
    part->headers = at;
    part->header_count = many ? (int64_t)(1943 + below(10)) : (int64_t)below(4);
    part->headers_size = 0;
    for (int64_t i = 0; i < part->header_count; i++) {
        size_t name_size = many ? 0 : below(9), j;
        int64_t value_size = many ? -1 : (int64_t)below(9) - 1;
        part->headers_size += write_varint(at + part->headers_size, (int64_t)name_size);
        for (j = 0; j < name_size; j++)
            at[part->headers_size++] = (uint8_t)random_number();
        part->headers_size += write_varint(at + part->headers_size, value_size);
        for (; value_size > 0; value_size--)
            at[part->headers_size++] = (uint8_t)random_number();
    }
    parts->fresh_used += part->headers_size;
}

static void change_part(Parts *parts, Part *part)
{
    switch (below(5)) {
    case 0:
        part->time_delta = below(2) ? odd_number() : (int64_t)below(2000) - 1000;
        break;
    case 1:
        new_sized(parts, &part->key, &part->key_size);
        break;
    case 2:
        new_sized(parts, &part->value, &part->value_size);
        break;
    case 3:
        new_headers(parts, part);
        break;
    default:
        part->key_size = part->value_size = -1;
    }
}

static void change_header(Parts *parts)
{
    switch (below(6)) {
    case 0:
        parts->header[22] ^= 16; /* transactional */
        break;
    case 1:
        parts->header[21 + below(2)] ^= (uint8_t)(1 << below(8));
        break;
    case 2:
        put_big_endian(parts->header + 27, (uint64_t)odd_number(), 8);
        break;
    case 3:
        put_big_endian(parts->header + 27, (uint64_t)INT64_C(1795546653000) + below(5000), 8);
        break;
    case 4:
        put_big_endian(parts->header + 43, (uint64_t)odd_number(), 8);
        break;
    default:
        put_big_endian(parts->header + 51, (uint64_t)odd_number(), 2);
    }
}

static void add_part(Parts *parts)
{
    Part *part = &parts->parts[parts->count];
    part->time_delta = (int64_t)below(300);
    new_sized(parts, &part->key, &part->key_size);
    new_sized(parts, &part->value, &part->value_size);
    new_headers(parts, part);
    parts->count++;
}

static void change_parts(Parts *parts)
{
    size_t chosen = parts->count ? below((size_t)parts->count) : 0;
    size_t kind = below(7);
    if (parts->fresh_used > LARGEST_BATCH / 2)
        return;
    if (kind == 0 || parts->count == 0) {
        if (parts->count < MOST_RECORDS)
            add_part(parts);
    } else if (kind == 1) {
        parts->parts[chosen] = parts->parts[--parts->count];
    } else if (kind == 2 && parts->count < MOST_RECORDS) {
        parts->parts[parts->count++] = parts->parts[chosen];
    } else if (kind == 3) {
        change_header(parts);
    } else {
        change_part(parts, &parts->parts[chosen]);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    static Parts parts;
    static uint8_t batch[LARGEST_BATCH];
    size_t batch_size = 0, room = max_size < LARGEST_BATCH ? max_size : LARGEST_BATCH;
    random_state = random_state * UINT64_C(6364136223846793005) + seed + 1;
    if (size < INPUT_HEAD || room < INPUT_HEAD + BATCH_HEADER)
        return LLVMFuzzerMutate(data, size, max_size);
    room -= INPUT_HEAD;
    if (below(8) == 0)
        data[below(INPUT_HEAD)] = (uint8_t)random_number();
    if (below(3)) {
        take_apart(&parts, data + INPUT_HEAD, size - INPUT_HEAD);
        do
            change_parts(&parts);
        while (below(2));
        batch_size = write_batch(&parts, batch, room);
        memcpy(data + INPUT_HEAD, batch, batch_size);
        size = INPUT_HEAD + batch_size;
        if (below(3))
            return size;
    }
    size = INPUT_HEAD + LLVMFuzzerMutate(data + INPUT_HEAD, size - INPUT_HEAD, room);
    if (size >= INPUT_HEAD + BATCH_HEADER && below(4))
        put_big_endian(data + INPUT_HEAD + 8, size - INPUT_HEAD - 12, 4);
    return size;
}
