/* A server for the module under test: the API functions that it calls, on one stream and on strings whose memory ends
   with their last byte, so that AddressSanitizer sees every read beyond. Include it after the module.

   Broken promises end the process: a string or key that is not freed, a second reply, memory far beyond the batch. */
#include <stdio.h>
#include <stdlib.h>

struct Context {
    int (*find)(const char *, void *);
    int flags;
};
struct String {
    char *bytes;
    size_t size;
};
struct FilterContext {
    String *arguments[2];
    int count;
};

/* The stream refuses entries when it has `room` new ones. */
struct Key {
    int type, open;
    EntryId last;
    long added, room;
};

/* What the module did with the last command. */
static struct {
    Key key;
    /* An error with its mark, or an array: *, the string in it, : and the number in it. */
    char reply[1024];
    size_t reply_size;
    int replies;
    /* Elements that the array in the reply still lacks. */
    long lacking;
    /* What it replicated: calls of the function, entries, and commands for the append-only file. */
    long calls, xadds, adds;
    long long number;
    size_t live_bytes, peak_bytes;
    /* The entries as XADD commands, if `recorded`. */
    int recorded;
    char *entries;
    size_t entries_size, entries_room;
} server;

static Command add_handler, put_handler;
static FilterCall filter;

#define PROMISE(kept, what) \
    do { \
        if (!(kept)) { \
            fprintf(stderr, "broken: %s (%s:%d)\n", what, __FILE__, __LINE__); \
            abort(); \
        } \
    } while (0)

static void *stub_Alloc(size_t size)
{
    size_t *block = malloc(sizeof(size_t) + size);
    PROMISE(block != NULL, "memory");
    *block = size;
    server.live_bytes += size;
    if (server.live_bytes > server.peak_bytes)
        server.peak_bytes = server.live_bytes;
    return block + 1;
}

static void stub_Free(void *memory)
{
    size_t *block = (size_t *)memory - 1;
    server.live_bytes -= *block;
    free(block);
}

static String *stub_CreateString(Context *context, const char *bytes, size_t size)
{
    String *string = stub_Alloc(sizeof *string);
    (void)context;
    string->bytes = stub_Alloc(size);
    string->size = size;
    memcpy(string->bytes, bytes, size);
    return string;
}

static void stub_FreeString(Context *context, String *string)
{
    (void)context;
    stub_Free(string->bytes);
    stub_Free(string);
}

static const char *stub_StringPtrLen(const String *string, size_t *size)
{
    *size = string->size;
    return string->bytes;
}

/* Reads digits at *at, as an unsigned number of 64 bits. Returns 0 if there are none, or too many. */
static int read_digits(const char **at, const char *end, uint64_t *number)
{
    const char *from = *at;
    *number = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (*number > (UINT64_MAX - digit) / 10)
            return 0;
        *number = *number * 10 + digit;
    }
    return *at > from;
}

static int stub_StringToLongLong(const String *string, long long *number)
{
    const char *at = string->bytes, *end = at + string->size;
    int negative = at < end && *at == '-';
    uint64_t read;
    at += negative;
    if (!read_digits(&at, end, &read) || at != end || read > INT64_MAX)
        return API_ERROR;
    *number = negative ? -(long long)read : (long long)read;
    return API_OK;
}

static int stub_StringToStreamID(const String *string, EntryId *id)
{
    const char *at = string->bytes, *end = at + string->size;
    id->sequence = 0;
    if (!read_digits(&at, end, &id->ms))
        return API_ERROR;
    if (at < end && *at++ == '-' && !read_digits(&at, end, &id->sequence))
        return API_ERROR;
    return at == end ? API_OK : API_ERROR;
}

static void record(const void *bytes, size_t size)
{
    if (server.entries_size + size > server.entries_room) {
        server.entries_room = 2 * (server.entries_size + size);
        server.entries = realloc(server.entries, server.entries_room);
        PROMISE(server.entries != NULL, "memory");
    }
    memcpy(server.entries + server.entries_size, bytes, size);
    server.entries_size += size;
}

static void record_string(const void *bytes, size_t size)
{
    char head[32];
    record(head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", size));
    record(bytes, size);
    record("\r\n", 2);
}

static void record_entry(const EntryId *id, String **strings, long count)
{
    char text[64];
    long i;
    record(text, (size_t)snprintf(text, sizeof text, "*%ld\r\n", 4 + count));
    record_string("XADD", 4);
    record_string("g", 1);
    record_string("NOMKSTREAM", 10);
    record_string(text,
        (size_t)snprintf(text, sizeof text, "%llu-%llu", (unsigned long long)id->ms, (unsigned long long)id->sequence));
    for (i = 0; i < count; i++)
        record_string(strings[i]->bytes, strings[i]->size);
}

static int stub_StreamAdd(Key *key, int flags, EntryId *id, String **strings, long pairs)
{
    long i;
    PROMISE(key == &server.key && key->open && flags == 0 && pairs > 0, "StreamAdd");
    PROMISE(key->type == TYPE_STREAM || key->type == TYPE_EMPTY, "a stream, or none yet");
    for (i = 0; i < 2 * pairs; i++)
        PROMISE(strings[i]->size < SIZE_MAX, "live strings");
    if (id->ms < key->last.ms || (id->ms == key->last.ms && id->sequence <= key->last.sequence) || key->added == key->room)
        return API_ERROR;
    key->type = TYPE_STREAM;
    key->last = *id;
    key->added++;
    if (server.recorded)
        record_entry(id, strings, 2 * pairs);
    return API_OK;
}

static Key *stub_OpenKey(Context *context, String *name, int mode)
{
    (void)context;
    PROMISE(name->size == 1 && mode == (OPEN_READ | OPEN_WRITE) && !server.key.open, "OpenKey");
    server.key.open = 1;
    return &server.key;
}

static void stub_CloseKey(Key *key)
{
    PROMISE(key == &server.key && key->open, "CloseKey");
    key->open = 0;
}

static int stub_KeyType(Key *key)
{
    PROMISE(key == &server.key && key->open, "KeyType");
    return key->type;
}

/* A reply, or the next element of an array that is one. */
static int reply_with(const char *mark, const char *text, size_t size)
{
    if (server.lacking > 0)
        server.lacking--;
    else
        PROMISE(++server.replies == 1, "one reply");
    PROMISE(server.reply_size + strlen(mark) + size < sizeof server.reply, "a short reply");
    memcpy(server.reply + server.reply_size, mark, strlen(mark));
    server.reply_size += strlen(mark);
    memcpy(server.reply + server.reply_size, text, size);
    server.reply_size += size;
    return API_OK;
}

static int stub_ReplyWithError(Context *context, const char *text)
{
    (void)context;
    PROMISE(server.lacking == 0, "no error in an array");
    return reply_with("-", text, strlen(text));
}

static int stub_WrongArity(Context *context)
{
    return stub_ReplyWithError(context, "ERR wrong number of arguments");
}

static int stub_ReplyWithArray(Context *context, long count)
{
    (void)context;
    reply_with("*", "", 0);
    server.lacking = count;
    return API_OK;
}

static int stub_ReplyWithStringBuffer(Context *context, const char *text, size_t size)
{
    (void)context;
    return reply_with("", text, size);
}

static int stub_ReplyWithLongLong(Context *context, long long number)
{
    char text[32];
    (void)context;
    server.number = number;
    return reply_with(":", text, (size_t)snprintf(text, sizeof text, "%lld", number));
}

static int stub_Replicate(Context *context, const char *command, const char *format, ...)
{
    static const struct {
        const char *command, *format;
        long *count;
    } known[] = {{"FCALL", "Ascsbss", &server.calls}, {"XADD", "Asbv", &server.xadds}, {"KORVET.ADD", "Rssscs", &server.adds}};
    size_t i;
    (void)context;
    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(command, known[i].command) == 0 && strcmp(format, known[i].format) == 0) {
            ++*known[i].count;
            return API_OK;
        }
    PROMISE(0, "Replicate");
}

static int stub_GetContextFlags(Context *context)
{
    return context ? context->flags : 0;
}

static void stub_SetModuleAttribs(Context *context, const char *name, int version, int api)
{
    (void)context;
    PROMISE(strcmp(name, "korvet") == 0 && version > 0 && api == 1, "SetModuleAttribs");
}

static void stub_SetModuleOptions(Context *context, int options)
{
    (void)context;
    (void)options;
}

static int stub_CreateCommand(
    Context *context, const char *name, Command handler, const char *flags, int first, int last, int step)
{
    (void)context;
    (void)flags;
    (void)first;
    (void)last;
    (void)step;
    *(strcmp(name, "korvet.add") == 0 ? &add_handler : &put_handler) = handler;
    return API_OK;
}

static Filter *stub_RegisterCommandFilter(Context *context, FilterCall call, int flags)
{
    (void)flags;
    filter = call;
    return (Filter *)context;
}

static int stub_CommandFilterArgsCount(FilterContext *context)
{
    return context->count;
}

static String *stub_CommandFilterArgGet(FilterContext *context, int position)
{
    PROMISE(position >= 0 && position < context->count, "CommandFilterArgGet");
    return context->arguments[position];
}

static int stub_SignalModifiedKey(Context *context, String *name)
{
    (void)context;
    (void)name;
    return API_OK;
}

static int stub_NotifyKeyspaceEvent(Context *context, int class, const char *event, String *name)
{
    (void)context;
    (void)class;
    (void)event;
    (void)name;
    return API_OK;
}

static int find_stub(const char *name, void *target)
{
#define STUB(result, function, parameters) \
    if (strcmp(name, "RedisModule_" #function) == 0) { \
        result(*stub) parameters = stub_##function; \
        memcpy(target, &stub, sizeof stub); \
        return API_OK; \
    }
    SERVER_API(STUB)
#undef STUB
    return API_ERROR;
}
