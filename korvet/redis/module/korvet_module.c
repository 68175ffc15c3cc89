/* korvet's module for Redis and Valkey: appends a record batch to a stream, each record an entry.

   KORVET.PUT stream ID timestamps function batch
       Adds the records of a batch (magic 2, not compressed; its CRC is not checked) as entries, with the fields that
       korvet/records/kernel/record_fields.py writes. `ID` is the first record's entry ID; each record takes the next
       one, counted as ms << 10 | sequence. `timestamps` is 1 if each entry gets the field `ts`, else 0. Creates the
       stream if there is none. Returns the spans of the log's index that the records are, and the bytes of the largest
       entry. A span is three big-endian doubles: records (SPAN_RECORDS, fewer in the last one), bytes, and the largest
       timestamp (ms).
       Replicas get FCALL function 1 stream ID timestamps batch. The function does the same without the module; the
       caller has loaded it (korvet/log/lua/unpack.lua). Its name has to begin with korvet_unpack, because replicas
       check no permissions of what a primary sends. If Lua can't read all numbers, slots move, or the batch has more
       than LONGEST_CALL records, replicas get an XADD for each record.
       Errors: REFUSED if the first ID isn't above the stream's last one; WRONGTYPE; ERR for anything malformed. These
       leave the stream as it was. ERR, too, if the stream refuses a record after the first, which no server does: it
       refuses entries of 1 GiB only.

   KORVET.PUT
       Returns the version of the module. A broker that may run this command uses the module, whatever its version: a
       command with another meaning has another name.

   KORVET.ADD key ID timestamps 0 batch
       What the append-only file has in place of KORVET.PUT; nobody else may call it. A server that replays the file
       while it needs replicas to write (min-replicas-to-write) refuses functions, and goes on without what they would
       have added. So the file has a command that a server without the module doesn't know: it refuses the file. The
       last release replicated this command, with another number in place of 0. */
#include "server_api.h"

#include <stdio.h>
#include <string.h>

/* korvet/redis/module/__init__.py has the same number. */
#define MODULE_VERSION 2

/* Records between two points of a log's index, as korvet/log/lua/_index.lua has it. */
#define SPAN_RECORDS 256
#define SPAN_BYTES 24

/* The names of korvet/offsets/entry_fields.py. */
#define KEY "key"
#define VALUE "value"
#define TIMESTAMP "ts"
#define HEADER_PREFIX "header."
#define NULL_HEADER_PREFIX "nullheader."
#define PRODUCER_ID "pid"
#define PRODUCER_EPOCH "epoch"
#define SIZE(text) (sizeof(text) - 1)

/* What the name of a function for replicas begins with, in every release. */
#define FUNCTION_PREFIX "korvet_unpack"

/* As korvet/offsets/packing.py has them. */
#define SEQUENCE_BITS 10
#define MAX_SEQUENCE ((UINT64_C(1) << SEQUENCE_BITS) - 1)
#define MAX_POSITION ((uint64_t)INT64_MAX)

/* Lua's numbers are doubles, which hold integers below 2^53. It reads a timestamp delta as zigzag, which is twice the
   delta, and adds it to the base timestamp. */
#define EXACT_NUMBER (INT64_C(1) << 53)
#define EXACT_TIMESTAMP (INT64_C(1) << 51)
/* Records that a replica adds by one call of the function. Without the module it takes 6 us for each, and answers
   nobody meanwhile. */
#define LONGEST_CALL 16384

/* The layout of a record batch, as korvet/offsets/record_batch.py has it. */
enum {
    LENGTH_AT = 8,
    MAGIC_AT = 16,
    ATTRIBUTES_AT = 21,
    LAST_OFFSET_DELTA_AT = 23,
    BASE_TIMESTAMP_AT = 27,
    PRODUCER_ID_AT = 43,
    PRODUCER_EPOCH_AT = 51,
    RECORD_COUNT_AT = 57,
    HEADER_SIZE = 61,
    LENGTH_EXCLUDES = 12,
    SMALLEST_RECORD = 7,
    MAGIC = 2,
    CODEC_MASK = 7,
    TRANSACTIONAL = 16,
    CONTROL = 32
};

/* Bytes of a batch. A stream refuses entries of 1 GiB: no record of a batch comes near that, so only the first
   entry can fail. */
#define MAX_BATCH_SIZE (UINT64_C(512) << 20)
/* Names and values of one entry: MAX_FIELD_ARGUMENTS of korvet/records/kernel/record_fields.py. */
#define MAX_ENTRY_STRINGS 3900
/* Characters of an int64 in decimal, and of an entry ID. */
#define NUMBER_ROOM 20
#define ID_ROOM (2 * NUMBER_ROOM + 1)

typedef const uint8_t *Bytes;

/* What is wrong with a batch: the record, or -1 if it is the header. */
typedef struct {
    const char *reason;
    int32_t record;
} Fault;

/* A checked batch. */
typedef struct {
    Bytes records, end;
    int64_t base_timestamp, producer_id;
    int32_t count;
    int16_t producer_epoch;
    int transactional;
    /* The size of the longest header name, -1 without headers. */
    int32_t longest_name;
    /* Whether Lua reads all numbers exactly. */
    int exact;
} Batch;

/* A record up to its headers. Sizes are -1 for null. */
typedef struct {
    Bytes key, value, headers, end;
    int64_t timestamp;
    int32_t key_size, value_size, header_count;
} Record;

typedef struct {
    Bytes name, value;
    int32_t name_size, value_size;
} Header;

static uint32_t uint32_at(Bytes p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t uint64_at(Bytes p)
{
    return (uint64_t)uint32_at(p) << 32 | uint32_at(p + 4);
}

/* A two's complement number of 64 bits; a plain cast would be up to the compiler. */
static int64_t signed_of(uint64_t raw)
{
    return raw > INT64_MAX ? -(int64_t)(UINT64_MAX - raw) - 1 : (int64_t)raw;
}

static int64_t int64_at(Bytes p)
{
    return signed_of(uint64_at(p));
}

static int32_t int32_at(Bytes p)
{
    uint32_t raw = uint32_at(p);
    return raw > INT32_MAX ? -(int32_t)(UINT32_MAX - raw) - 1 : (int32_t)raw;
}

static int16_t int16_at(Bytes p)
{
    int raw = p[0] << 8 | p[1];
    return (int16_t)(raw > INT16_MAX ? raw - 65536 : raw);
}

/* Reads a zigzag varint of `bits` (32 or 64) bits at *at. Returns 0 if it is cut off or has more bits. */
static inline int read_varint(Bytes *at, Bytes end, int bits, int64_t *value)
{
    Bytes p = *at;
    uint64_t raw = 0;
    int shift;
    for (shift = 0; shift < bits && p < end; shift += 7) {
        uint64_t byte = *p++, low = byte & 127;
        if (bits - shift < 7 && low >> (bits - shift))
            return 0;
        raw |= low << shift;
        if (byte < 128) {
            *at = p;
            *value = signed_of(raw >> 1 ^ (0 - (raw & 1)));
            return 1;
        }
    }
    return 0;
}

/* Reads the size of `*bytes`, `least` (0, or -1 for null) or more, and skips the bytes. */
static inline int read_sized(Bytes *at, Bytes end, int64_t least, Bytes *bytes, int32_t *size)
{
    int64_t read;
    if (!read_varint(at, end, 32, &read) || read < least || read > end - *at)
        return 0;
    *bytes = *at;
    *size = (int32_t)read;
    if (read > 0)
        *at += read;
    return 1;
}

/* Reads the record at *at up to its headers, and moves *at to the next one. Returns what is wrong, or NULL. */
static inline const char *read_record(const Batch *batch, Bytes *at, int32_t index, Record *record)
{
    Bytes p = *at, end = batch->end;
    int64_t size, delta;
    if (!read_varint(&p, end, 32, &size) || size < 1 || size > end - p)
        return "its length is cut off, malformed or beyond the batch";
    record->end = end = p + size;
    p++; /* attributes, which Kafka doesn't use */
    if (!read_varint(&p, end, 64, &delta))
        return "its timestamp delta is cut off or malformed";
    if (delta > 0 ? batch->base_timestamp > INT64_MAX - delta : batch->base_timestamp < INT64_MIN - delta)
        return "its timestamp is no int64";
    record->timestamp = batch->base_timestamp + delta;
    if (!read_varint(&p, end, 32, &delta) || delta != index)
        return "its offset delta is cut off, malformed or out of sequence";
    if (!read_sized(&p, end, -1, &record->key, &record->key_size))
        return "its key length is malformed or beyond the record";
    if (!read_sized(&p, end, -1, &record->value, &record->value_size))
        return "its value length is malformed or beyond the record";
    if (!read_varint(&p, end, 32, &size) || size < 0 || size > (end - p) / 2)
        return "its header count is negative, malformed or beyond the record";
    record->header_count = (int32_t)size;
    record->headers = p;
    *at = end;
    return NULL;
}

/* Reads the header at *at, and moves *at to the next one. Returns what is wrong, or NULL. */
static inline const char *read_header(const Record *record, Bytes *at, Header *header)
{
    if (!read_sized(at, record->end, 0, &header->name, &header->name_size))
        return "it has a header without a name, or the name's length is malformed or beyond the record";
    if (!read_sized(at, record->end, -1, &header->value, &header->value_size))
        return "it has a header value whose length is malformed or beyond the record";
    return NULL;
}

/* Whether a record's entry has the field `ts`: with `timestamps` all have it, else only one without other fields. */
static inline int has_timestamp(const Batch *batch, const Record *record, int timestamps)
{
    return timestamps
        || (record->key_size < 0 && record->value_size < 0 && record->header_count == 0 && !batch->transactional);
}

static inline int is_below(int64_t number, int64_t limit)
{
    return number < limit && number > -limit;
}

/* Reads the header of a batch. Returns what is wrong, or NULL. */
static const char *read_batch(Bytes p, size_t size, Batch *batch)
{
    int attributes;
    if (size < HEADER_SIZE)
        return "it is shorter than a header";
    if (size > MAX_BATCH_SIZE)
        return "it is longer than 512 MiB";
    if (p[MAGIC_AT] != MAGIC)
        return "its magic is not 2";
    if (uint32_at(p + LENGTH_AT) != size - LENGTH_EXCLUDES)
        return "its length is not that of the argument";
    attributes = p[ATTRIBUTES_AT] << 8 | p[ATTRIBUTES_AT + 1];
    if (attributes & CODEC_MASK)
        return "it is compressed";
    if (attributes & CONTROL)
        return "it is a control batch";
    batch->transactional = (attributes & TRANSACTIONAL) != 0;
    batch->base_timestamp = int64_at(p + BASE_TIMESTAMP_AT);
    batch->producer_id = int64_at(p + PRODUCER_ID_AT);
    batch->producer_epoch = int16_at(p + PRODUCER_EPOCH_AT);
    batch->count = int32_at(p + RECORD_COUNT_AT);
    if (batch->count < 1 || (size_t)batch->count > (size - HEADER_SIZE) / SMALLEST_RECORD)
        return "its record count is not positive, or more than its bytes can hold";
    if (int32_at(p + LAST_OFFSET_DELTA_AT) != batch->count - 1)
        return "its last offset delta is not that of its last record";
    batch->records = p + HEADER_SIZE;
    batch->end = p + size;
    batch->longest_name = -1;
    batch->exact = is_below(batch->base_timestamp, EXACT_TIMESTAMP)
        && (!batch->transactional || is_below(batch->producer_id, EXACT_NUMBER));
    return NULL;
}

/* Checks all records. Sets the longest header name, and whether Lua reads the numbers of the records exactly. */
static Fault check_records(Batch *batch, int timestamps)
{
    Bytes at = batch->records;
    Fault fault = {NULL, 0};
    for (; fault.record < batch->count; fault.record++) {
        Record record;
        Header header;
        Bytes header_at;
        int32_t i;
        fault.reason = read_record(batch, &at, fault.record, &record);
        if (fault.reason)
            return fault;
        /* No sum leaves 64 bits: the record holds its headers. */
        if (2 * ((int64_t)record.header_count + (record.key_size >= 0) + (record.value_size >= 0)
                 + has_timestamp(batch, &record, timestamps) + 2 * batch->transactional)
            > MAX_ENTRY_STRINGS) {
            fault.reason = "its headers are more than an entry can take";
            return fault;
        }
        batch->exact &= is_below(record.timestamp, EXACT_TIMESTAMP);
        header_at = record.headers;
        for (i = 0; i < record.header_count; i++) {
            fault.reason = read_header(&record, &header_at, &header);
            if (fault.reason)
                return fault;
            if (header.name_size > batch->longest_name)
                batch->longest_name = header.name_size;
        }
        if (header_at != record.end) {
            fault.reason = "bytes follow its last header";
            return fault;
        }
    }
    if (at != batch->end)
        fault = (Fault){"bytes follow its last record", -1};
    return fault;
}

/* Reads the header of a batch and checks all records. Returns no reason if add_records can read the batch. */
static Fault check_batch(Bytes p, size_t size, int timestamps, Batch *batch)
{
    Fault fault = {read_batch(p, size, batch), -1};
    return fault.reason ? fault : check_records(batch, timestamps);
}

/* Writes a number in decimal, at most NUMBER_ROOM characters. Returns how many. */
static size_t put_number(char *out, int64_t number)
{
    char digits[NUMBER_ROOM];
    size_t first = sizeof digits, at = 0;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[--first] = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        out[at++] = '-';
    memcpy(out + at, digits + first, sizeof digits - first);
    return at + sizeof digits - first;
}

static String *text(Bytes bytes, size_t size)
{
    return Api_CreateString(NULL, (const char *)bytes, size);
}

static String *number_text(int64_t number)
{
    char digits[NUMBER_ROOM];
    return Api_CreateString(NULL, digits, put_number(digits, number));
}

/* The strings that all entries of a batch share. `prefixed` has room for a prefix and the longest header name. */
typedef struct {
    String *key, *value, *timestamp, *producer_id, *producer_epoch, *producer_id_value, *producer_epoch_value;
    char *prefixed;
} Shared;

static Shared make_shared(const Batch *batch)
{
    return (Shared){
        Api_CreateString(NULL, KEY, SIZE(KEY)),
        Api_CreateString(NULL, VALUE, SIZE(VALUE)),
        Api_CreateString(NULL, TIMESTAMP, SIZE(TIMESTAMP)),
        Api_CreateString(NULL, PRODUCER_ID, SIZE(PRODUCER_ID)),
        Api_CreateString(NULL, PRODUCER_EPOCH, SIZE(PRODUCER_EPOCH)),
        number_text(batch->producer_id),
        number_text(batch->producer_epoch),
        batch->longest_name < 0 ? NULL : Api_Alloc(SIZE(NULL_HEADER_PREFIX) + (size_t)batch->longest_name),
    };
}

static void free_shared(Shared *shared)
{
    Api_FreeString(NULL, shared->key);
    Api_FreeString(NULL, shared->value);
    Api_FreeString(NULL, shared->timestamp);
    Api_FreeString(NULL, shared->producer_id);
    Api_FreeString(NULL, shared->producer_epoch);
    Api_FreeString(NULL, shared->producer_id_value);
    Api_FreeString(NULL, shared->producer_epoch_value);
    if (shared->prefixed)
        Api_Free(shared->prefixed);
}

/* Names and values of one entry, and those of them that are this entry's own. */
typedef struct {
    String *strings[MAX_ENTRY_STRINGS], *own[MAX_ENTRY_STRINGS];
    long used, owned;
} Entry;

static void put_own(Entry *entry, String *string)
{
    entry->strings[entry->used++] = entry->own[entry->owned++] = string;
}

static void put_header(Entry *entry, const Header *header, char *prefixed)
{
    int null = header->value_size < 0;
    size_t prefix_size = null ? SIZE(NULL_HEADER_PREFIX) : SIZE(HEADER_PREFIX);
    memcpy(prefixed, null ? NULL_HEADER_PREFIX : HEADER_PREFIX, prefix_size);
    memcpy(prefixed + prefix_size, header->name, (size_t)header->name_size);
    put_own(entry, Api_CreateString(NULL, prefixed, prefix_size + (size_t)header->name_size));
    put_own(entry, text(header->value, null ? 0 : (size_t)header->value_size));
}

/* The value of the field `ts`: ms that a record's timestamp is after its entry ID. The broker refuses timestamps that
   far before 1970; the kernel gives them this value, too. */
static int64_t relative_timestamp(int64_t timestamp, int64_t ms)
{
    return timestamp < INT64_MIN + ms ? INT64_MIN : timestamp - ms;
}

static void fill(
    Entry *entry, const Batch *batch, const Record *record, const Shared *shared, int64_t ms, int timestamps)
{
    Bytes at = record->headers;
    int32_t i;
    entry->used = entry->owned = 0;
    if (record->key_size >= 0) {
        entry->strings[entry->used++] = shared->key;
        put_own(entry, text(record->key, (size_t)record->key_size));
    }
    if (record->value_size >= 0) {
        entry->strings[entry->used++] = shared->value;
        put_own(entry, text(record->value, (size_t)record->value_size));
    }
    if (has_timestamp(batch, record, timestamps)) {
        entry->strings[entry->used++] = shared->timestamp;
        put_own(entry, number_text(timestamps ? relative_timestamp(record->timestamp, ms) : 0));
    }
    for (i = 0; i < record->header_count; i++) {
        Header header;
        if (!read_header(record, &at, &header))
            put_header(entry, &header, shared->prefixed);
    }
    if (batch->transactional) {
        entry->strings[entry->used++] = shared->producer_id;
        entry->strings[entry->used++] = shared->producer_id_value;
        entry->strings[entry->used++] = shared->producer_epoch;
        entry->strings[entry->used++] = shared->producer_epoch_value;
    }
}

/* Writes an entry ID. Returns its size. */
static size_t put_id(char *out, EntryId id)
{
    size_t size = put_number(out, (int64_t)id.ms);
    out[size++] = '-';
    return size + put_number(out + size, (int64_t)id.sequence);
}

static EntryId id_of(uint64_t position)
{
    return (EntryId){position >> SEQUENCE_BITS, position & MAX_SEQUENCE};
}

static void replicate_entry(Context *context, String *name, EntryId id, const Entry *entry)
{
    char text[ID_ROOM];
    Api_Replicate(context, "XADD", "Asbv", name, text, put_id(text, id), entry->strings, (size_t)entry->used);
}

/* The spans of a batch: the finished ones as bytes, and what the last one has so far. */
typedef struct {
    char *bytes;
    size_t size;
    int64_t records, span_bytes, newest, largest;
} Spans;

static void put_double(Spans *spans, int64_t number)
{
    double value = (double)number;
    uint64_t raw;
    int shift;
    memcpy(&raw, &value, sizeof raw);
    for (shift = 56; shift >= 0; shift -= 8)
        spans->bytes[spans->size++] = (char)(raw >> shift);
}

static void end_span(Spans *spans)
{
    if (spans->records == 0)
        return;
    put_double(spans, spans->records);
    put_double(spans, spans->span_bytes);
    put_double(spans, spans->newest);
    spans->records = spans->span_bytes = 0;
    spans->newest = INT64_MIN;
}

/* Counts an entry with the time of its record. */
static void measure(Spans *spans, const Entry *entry, int64_t time)
{
    size_t bytes = 0, size;
    long i;
    for (i = 0; i < entry->used; i++) {
        Api_StringPtrLen(entry->strings[i], &size);
        bytes += size;
    }
    spans->records++;
    spans->span_bytes += (int64_t)bytes;
    if (time > spans->newest)
        spans->newest = time;
    if ((int64_t)bytes > spans->largest)
        spans->largest = (int64_t)bytes;
    if (spans->records == SPAN_RECORDS)
        end_span(spans);
}

/* Adds the records of a checked batch as entries; the first one's ID is `position`. If `replicated`, replicas get an
   XADD for each. Returns how many were added. */
static int32_t add_records(Context *context, Key *key, String *name, uint64_t position, const Batch *batch,
    int timestamps, int replicated, Spans *spans)
{
    Shared shared = make_shared(batch);
    Bytes at = batch->records;
    int32_t index;
    for (index = 0; index < batch->count; index++, position++) {
        EntryId id = id_of(position);
        Record record;
        Entry entry;
        int added;
        if (read_record(batch, &at, index, &record))
            break;
        fill(&entry, batch, &record, &shared, (int64_t)id.ms, timestamps);
        added = Api_StreamAdd(key, 0, &id, entry.strings, entry.used / 2);
        if (added == API_OK)
            measure(spans, &entry, timestamps ? record.timestamp : (int64_t)id.ms);
        if (replicated && added == API_OK)
            replicate_entry(context, name, id, &entry);
        while (entry.owned > 0)
            Api_FreeString(NULL, entry.own[--entry.owned]);
        if (added != API_OK)
            break;
    }
    free_shared(&shared);
    return index;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* Whether argument `place` of a command is `lowercase`, if its case doesn't count. */
static int is_argument(FilterContext *context, int place, const char *lowercase)
{
    size_t size, i;
    const char *word;
    if (place >= Api_CommandFilterArgsCount(context))
        return 0;
    word = Api_StringPtrLen(Api_CommandFilterArgGet(context, place), &size);
    for (i = 0; i < size && lowercase[i] == lower(word[i]); i++)
        ;
    return i == size && lowercase[i] == 0;
}

/* Whether a slot may be moving to another node by replication (Redis 8.4). That node may lack the function. */
static int moves_slots;

/* Sees each command before the server does. The node to which slots move begins with CLUSTER SYNCSLOTS. */
static void watch_slots(FilterContext *context)
{
    moves_slots |= is_argument(context, 0, "cluster") && is_argument(context, 1, "syncslots");
}

static int reply_with_fault(Context *context, Fault fault)
{
    char message[256];
    if (fault.record < 0)
        snprintf(message, sizeof message, "ERR malformed batch: %s", fault.reason);
    else
        snprintf(message, sizeof message, "ERR malformed batch: record %d: %s", (int)fault.record, fault.reason);
    return Api_ReplyWithError(context, message);
}

static int reply_with_spans(Context *context, const Spans *spans)
{
    Api_ReplyWithArray(context, 2);
    Api_ReplyWithStringBuffer(context, spans->bytes, spans->size);
    return Api_ReplyWithLongLong(context, spans->largest);
}

/* Tells replicas and the append-only file of a batch. */
static void replicate(Context *context, String **arguments, uint64_t position, int as_entries)
{
    if (!as_entries) {
        char text[ID_ROOM];
        size_t size = put_id(text, id_of(position));
        Api_Replicate(context, "FCALL", "Ascsbss", arguments[4], "1", arguments[1], text, size, arguments[3], arguments[5]);
    }
    Api_Replicate(context, "KORVET.ADD", "Rssscs", arguments[1], arguments[2], arguments[3], "0", arguments[5]);
}

/* Adds a checked batch to the stream. */
static int append(Context *context, String **arguments, uint64_t position, const Batch *batch, int timestamps)
{
    String *name = arguments[1];
    uint64_t last = position + (uint64_t)batch->count - 1;
    int is_exact = batch->exact && last < (uint64_t)EXACT_NUMBER;
    int as_entries = moves_slots || !is_exact || batch->count > LONGEST_CALL;
    Key *key = Api_OpenKey(context, name, OPEN_READ | OPEN_WRITE);
    int type = Api_KeyType(key), result;
    int32_t added = 0;
    Spans spans = {NULL, 0, 0, 0, INT64_MIN, 0};
    if (type == TYPE_STREAM || type == TYPE_EMPTY) {
        spans.bytes = Api_Alloc(((size_t)batch->count / SPAN_RECORDS + 1) * SPAN_BYTES);
        added = add_records(context, key, name, position, batch, timestamps, as_entries, &spans);
        end_span(&spans);
    }
    Api_CloseKey(key);
    if (added > 0) {
        Api_SignalModifiedKey(context, name);
        Api_NotifyKeyspaceEvent(context, STREAM_EVENT, "xadd", name);
        replicate(context, arguments, position, as_entries);
    }
    if (!spans.bytes)
        return Api_ReplyWithError(context, "WRONGTYPE Operation against a key holding the wrong kind of value");
    if (added == batch->count)
        result = reply_with_spans(context, &spans);
    else if (added == 0)
        result = Api_ReplyWithError(context, "REFUSED the entry ID is not above the last one of the stream");
    else
        result = Api_ReplyWithError(context, "ERR the stream refused a record, and those after it");
    Api_Free(spans.bytes);
    return result;
}

static int put_batch(Context *context, String **arguments, int count)
{
    EntryId id;
    long long timestamps;
    const char *data;
    size_t size;
    uint64_t position;
    Batch batch;
    Fault fault;
    if (count != 6)
        return Api_WrongArity(context);
    if (Api_StringToStreamID(arguments[2], &id) != API_OK || id.sequence > MAX_SEQUENCE
        || id.ms > MAX_POSITION >> SEQUENCE_BITS)
        return Api_ReplyWithError(context, "ERR malformed entry ID");
    if (Api_StringToLongLong(arguments[3], &timestamps) != API_OK || (timestamps != 0 && timestamps != 1))
        return Api_ReplyWithError(context, "ERR timestamps is neither 0 nor 1");
    data = Api_StringPtrLen(arguments[5], &size);
    fault = check_batch((Bytes)data, size, (int)timestamps, &batch);
    if (fault.reason)
        return reply_with_fault(context, fault);
    position = id.ms << SEQUENCE_BITS | id.sequence;
    if ((uint64_t)batch.count - 1 > MAX_POSITION - position)
        return Api_ReplyWithError(context, "ERR the last record has no entry ID");
    return append(context, arguments, position, &batch, (int)timestamps);
}

static int is_for_replicas(const String *function)
{
    size_t size;
    const char *name = Api_StringPtrLen(function, &size);
    return size >= SIZE(FUNCTION_PREFIX) && memcmp(name, FUNCTION_PREFIX, SIZE(FUNCTION_PREFIX)) == 0;
}

static int put_command(Context *context, String **arguments, int count)
{
    if (count == 1)
        return Api_ReplyWithLongLong(context, MODULE_VERSION);
    if (count == 6 && !is_for_replicas(arguments[4]))
        return Api_ReplyWithError(context, "ERR the function is not " FUNCTION_PREFIX);
    return put_batch(context, arguments, count);
}

static int add_command(Context *context, String **arguments, int count)
{
    if (!(Api_GetContextFlags(context) & (FROM_PRIMARY | LOADING)))
        return Api_ReplyWithError(context, "REFUSED KORVET.ADD is for append-only files");
    return put_batch(context, arguments, count);
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(Context *context, String **arguments, int count)
{
    (void)arguments;
    (void)count;
    if (bind_server_api(context) != API_OK)
        return API_ERROR;
    Api_SetModuleAttribs(context, "korvet", MODULE_VERSION, API_VERSION);
    Api_SetModuleOptions(context, CHANGES_ARE_SIGNALLED);
    if (Api_CreateCommand(context, "korvet.put", put_command, "write deny-oom", 1, 1, 1) != API_OK
        || Api_CreateCommand(context, "korvet.add", add_command, "write deny-oom", 1, 1, 1) != API_OK)
        return API_ERROR;
    if (Api_GetContextFlags(context) & IN_CLUSTER && !Api_RegisterCommandFilter(context, watch_slots, 0))
        return API_ERROR;
    return API_OK;
}
