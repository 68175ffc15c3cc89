/* korvet's module for Redis and Valkey: appends a record batch to a stream, each record an entry.

   KORVET.ADD key ID timestamps replicas batch
       Adds the records of a batch (magic 2, not compressed; its CRC is not checked) as entries, with the fields that
       korvet/records/kernel/commands.py writes. `ID` is the first record's entry ID, ms << 10 | sequence as one
       number; each record takes the next one. `timestamps` is 1 if each entry gets the field `ts`, else 0. `replicas`
       is the version of the replica set that the caller has checked. Returns the last entry ID.
       Errors: REFUSED if there is no such stream, if the first ID isn't above the stream's last one, or if the replica
       set has changed; WRONGTYPE; ERR for anything malformed. These leave the stream as it was. ERR, too, if the
       stream refuses a record after the first: the records before it stay, and korvet_seal removes them.

   KORVET.REPLICAS
       Returns the version of the module, and the version of the replica set: it changes before a replica gets its
       first byte, and differs after each start of the server. Replicas get KORVET.ADD as it is, so the caller finds
       out whether each of them has the module, and then passes this version. In a Cluster, a node to which slots move
       counts as a replica.

   A replica that comes back gets all data if it has missed a KORVET.ADD. */
#include "server_api.h"

#include <stdio.h>
#include <string.h>

/* korvet/storage/module/__init__.py has the version that korvet works with. */
#define MODULE_VERSION 1

/* The names of korvet/offsets/entry_fields.py. */
#define KEY "key"
#define VALUE "value"
#define TIMESTAMP "ts"
#define HEADER_PREFIX "header."
#define NULL_HEADER_PREFIX "nullheader."
#define PRODUCER_ID "pid"
#define PRODUCER_EPOCH "epoch"
#define SIZE(text) (sizeof(text) - 1)

/* As korvet/offsets/packing.py has them. */
#define SEQUENCE_BITS 10
#define MAX_SEQUENCE ((UINT64_C(1) << SEQUENCE_BITS) - 1)
#define MAX_POSITION ((uint64_t)INT64_MAX)

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
/* Characters of an int64 in decimal. */
#define NUMBER_ROOM 20

typedef const uint8_t *Bytes;

/* What is wrong with a batch: the record, or -1 if it is the header. */
typedef struct {
    const char *reason;
    int32_t record;
} Fault;

/* A batch whose header was checked. */
typedef struct {
    Bytes records, end;
    int64_t base_timestamp, producer_id;
    int32_t count;
    int16_t producer_epoch;
    int transactional;
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
    return NULL;
}

/* Checks all records. Sets the size of the longest header name, -1 without headers. */
static Fault check_records(const Batch *batch, int timestamps, int32_t *longest_name)
{
    Bytes at = batch->records;
    Fault fault = {NULL, 0};
    *longest_name = -1;
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
        header_at = record.headers;
        for (i = 0; i < record.header_count; i++) {
            fault.reason = read_header(&record, &header_at, &header);
            if (fault.reason)
                return fault;
            if (header.name_size > *longest_name)
                *longest_name = header.name_size;
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
static Fault check_batch(Bytes p, size_t size, int timestamps, Batch *batch, int32_t *longest_name)
{
    Fault fault = {read_batch(p, size, batch), -1};
    return fault.reason ? fault : check_records(batch, timestamps, longest_name);
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

static Shared make_shared(const Batch *batch, int32_t longest_name)
{
    return (Shared){
        Api_CreateString(NULL, KEY, SIZE(KEY)),
        Api_CreateString(NULL, VALUE, SIZE(VALUE)),
        Api_CreateString(NULL, TIMESTAMP, SIZE(TIMESTAMP)),
        Api_CreateString(NULL, PRODUCER_ID, SIZE(PRODUCER_ID)),
        Api_CreateString(NULL, PRODUCER_EPOCH, SIZE(PRODUCER_EPOCH)),
        number_text(batch->producer_id),
        number_text(batch->producer_epoch),
        longest_name < 0 ? NULL : Api_Alloc(SIZE(NULL_HEADER_PREFIX) + (size_t)longest_name),
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

/* Adds the records of a checked batch as entries; the first one's ID is `position`. Returns how many were added. */
static int32_t add_records(Key *key, uint64_t position, const Batch *batch, int timestamps, int32_t longest_name)
{
    Shared shared = make_shared(batch, longest_name);
    Bytes at = batch->records;
    int32_t index;
    for (index = 0; index < batch->count; index++, position++) {
        EntryId id = {position >> SEQUENCE_BITS, position & MAX_SEQUENCE};
        Record record;
        Entry entry;
        int added;
        if (read_record(batch, &at, index, &record))
            break;
        fill(&entry, batch, &record, &shared, (int64_t)id.ms, timestamps);
        added = Api_StreamAdd(key, 0, &id, entry.strings, entry.used / 2);
        while (entry.owned > 0)
            Api_FreeString(NULL, entry.own[--entry.owned]);
        if (added != API_OK)
            break;
    }
    free_shared(&shared);
    return index;
}

/* Starts at a random number below 2^52, so that doubles hold every value. */
static long long replicas_version;

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* Whether a word is `lowercase`, if its case doesn't count. */
static int is_word(const char *word, size_t size, const char *lowercase)
{
    size_t i;
    for (i = 0; i < size && lowercase[i] == lower(word[i]); i++)
        ;
    return i == size && lowercase[i] == 0;
}

/* Whether argument `place` of a command is `lowercase`, if its case doesn't count. */
static int is_argument(FilterContext *context, int place, const char *lowercase)
{
    String *argument = Api_CommandFilterArgGet(context, place);
    size_t size;
    const char *word = argument ? Api_StringPtrLen(argument, &size) : NULL;
    return word && is_word(word, size, lowercase);
}

/* Whether KORVET.ADD was carried out since `added_until` was read; perhaps so before this module was loaded. */
static int added_since = 1;
/* The replication offset up to which KORVET.ADD may be in the replication stream. */
static long long added_until;

static void note_added_until(void)
{
    ServerInfo *info;
    int failed;
    /* Inside a script the offset doesn't count yet what the script did. */
    if (!added_since || Api_GetContextFlags(NULL) & IN_SCRIPT)
        return;
    info = Api_GetServerInfo(NULL, "replication");
    added_until = Api_ServerInfoGetFieldSigned(info, "master_repl_offset", &failed);
    Api_FreeServerInfo(NULL, info);
    if (failed)
        added_until = INT64_MAX;
    added_since = 0;
}

/* A replica that lost its connection asks for what it has missed: PSYNC <replication ID> <offset>. Nobody knows
   whether it has the module. So if KORVET.ADD may be in what it has missed, it gets all data: PSYNC ? -1. A third
   argument is FAILOVER; only a server that was the primary sends it. */
static void prevent_unknown_commands(FilterContext *context)
{
    long long offset;
    if (Api_CommandFilterArgsCount(context) != 3
        || Api_StringToLongLong(Api_CommandFilterArgGet(context, 2), &offset) != API_OK || offset > added_until)
        return;
    Api_CommandFilterArgReplace(context, 1, Api_CreateString(NULL, "?", 1));
    Api_CommandFilterArgReplace(context, 2, Api_CreateString(NULL, "-1", 2));
}

/* Sees each command before the server does, also those of scripts. Besides replicas, a node to which slots move gets
   commands as they are: it asks for them by CLUSTER SYNCSLOTS (Redis 8.4; Valkey moves slots in another way if a
   module is loaded), and acknowledges them by CLUSTER SYNCSLOTS ACK.

   The filter costs each command about 110 instructions; an INCR has 3,300. */
static void watch_replicas(FilterContext *context)
{
    size_t size;
    const char *name = Api_StringPtrLen(Api_CommandFilterArgGet(context, 0), &size);
    switch (size) {
    case SIZE("sync"):
        if (is_word(name, size, "sync")) {
            replicas_version++;
            note_added_until();
        }
        break;
    case SIZE("psync"):
        if (is_word(name, size, "psync")) {
            replicas_version++;
            note_added_until();
            prevent_unknown_commands(context);
        }
        break;
    case SIZE("cluster"):
        replicas_version += is_word(name, size, "cluster") && is_argument(context, 1, "syncslots")
            && !is_argument(context, 2, "ack");
        break;
    }
}

static int reply_with_fault(Context *context, Fault fault)
{
    char message[256];
    if (fault.record < 0)
        snprintf(message, sizeof message, "ERR KORVET.ADD: malformed batch: %s", fault.reason);
    else
        snprintf(message, sizeof message, "ERR KORVET.ADD: malformed batch: record %d: %s", (int)fault.record,
            fault.reason);
    return Api_ReplyWithError(context, message);
}

static int reply_with_id(Context *context, uint64_t position)
{
    char id[2 * NUMBER_ROOM + 1];
    size_t size = put_number(id, (int64_t)(position >> SEQUENCE_BITS));
    id[size++] = '-';
    size += put_number(id + size, (int64_t)(position & MAX_SEQUENCE));
    return Api_ReplyWithStringBuffer(context, id, size);
}

/* Whether the command is to be carried out with any version of the replica set: another server did so, or this one
   before it started. */
static int is_repeated(Context *context)
{
    return (Api_GetContextFlags(context) & (FROM_PRIMARY | LOADING)) != 0;
}

/* Adds a checked batch to the stream, if there is one. */
static int append(
    Context *context, String *name, uint64_t position, const Batch *batch, int timestamps, int32_t longest_name)
{
    Key *key = Api_OpenKey(context, name, OPEN_READ | OPEN_WRITE);
    int type = Api_KeyType(key);
    int32_t added = type == TYPE_STREAM ? add_records(key, position, batch, timestamps, longest_name) : 0;
    Api_CloseKey(key);
    if (type == TYPE_EMPTY)
        return Api_ReplyWithError(context, "REFUSED there is no such stream");
    if (type != TYPE_STREAM)
        return Api_ReplyWithError(context, "WRONGTYPE Operation against a key holding the wrong kind of value");
    if (added == 0)
        return Api_ReplyWithError(context, "REFUSED the entry ID is not above the last one of the stream");
    Api_SignalModifiedKey(context, name);
    Api_NotifyKeyspaceEvent(context, STREAM_EVENT, "xadd", name);
    Api_ReplicateVerbatim(context);
    added_since = 1;
    if (added < batch->count)
        return Api_ReplyWithError(context, "ERR KORVET.ADD: the stream refused a record, and those after it");
    return reply_with_id(context, position + (uint64_t)batch->count - 1);
}

static int add_command(Context *context, String **arguments, int count)
{
    EntryId id;
    long long timestamps, replicas;
    const char *data;
    size_t size;
    uint64_t position;
    Batch batch;
    Fault fault;
    int32_t longest_name;
    if (count != 6)
        return Api_WrongArity(context);
    if (Api_StringToStreamID(arguments[2], &id) != API_OK || id.sequence > MAX_SEQUENCE
        || id.ms > MAX_POSITION >> SEQUENCE_BITS)
        return Api_ReplyWithError(context, "ERR KORVET.ADD: malformed entry ID");
    if (Api_StringToLongLong(arguments[3], &timestamps) != API_OK || (timestamps != 0 && timestamps != 1))
        return Api_ReplyWithError(context, "ERR KORVET.ADD: timestamps is neither 0 nor 1");
    if (Api_StringToLongLong(arguments[4], &replicas) != API_OK)
        return Api_ReplyWithError(context, "ERR KORVET.ADD: malformed version of the replica set");
    data = Api_StringPtrLen(arguments[5], &size);
    fault = check_batch((Bytes)data, size, (int)timestamps, &batch, &longest_name);
    if (fault.reason)
        return reply_with_fault(context, fault);
    position = id.ms << SEQUENCE_BITS | id.sequence;
    if ((uint64_t)batch.count - 1 > MAX_POSITION - position)
        return Api_ReplyWithError(context, "ERR KORVET.ADD: the last record has no entry ID");
    if (replicas != replicas_version && !is_repeated(context))
        return Api_ReplyWithError(context, "REFUSED the replica set has changed");
    return append(context, arguments[1], position, &batch, (int)timestamps, longest_name);
}

static int replicas_command(Context *context, String **arguments, int count)
{
    (void)arguments;
    if (count != 1)
        return Api_WrongArity(context);
    Api_ReplyWithArray(context, 2);
    Api_ReplyWithLongLong(context, MODULE_VERSION);
    return Api_ReplyWithLongLong(context, replicas_version);
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(Context *context, String **arguments, int count)
{
    uint64_t random;
    (void)arguments;
    (void)count;
    if (bind_server_api(context) != API_OK)
        return API_ERROR;
    Api_SetModuleAttribs(context, "korvet", MODULE_VERSION, API_VERSION);
    Api_SetModuleOptions(context, CHANGES_ARE_SIGNALLED);
    Api_GetRandomBytes((unsigned char *)&random, sizeof random);
    replicas_version = (long long)(random >> 12);
    note_added_until();
    if (Api_CreateCommand(context, "korvet.add", add_command, "write deny-oom", 1, 1, 1) != API_OK
        || Api_CreateCommand(
               context, "korvet.replicas", replicas_command, "readonly fast allow-stale allow-loading", 0, 0, 0)
            != API_OK)
        return API_ERROR;
    return Api_RegisterCommandFilter(context, watch_replicas, 0) ? API_OK : API_ERROR;
}
